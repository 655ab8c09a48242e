// Memory from all sides of node: the heap of JavaScript, buffers, threads, zlib, crypto, sockets.
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const zlib = require('zlib');
const crypto = require('crypto');
const http = require('http');

function random(seed) {
  let state = seed;
  return () => (state = (Math.imul(state, 1103515245) + 12345) >>> 0);
}

function digest(data) {
  return crypto.createHash('sha256').update(data).digest('hex').slice(0, 16);
}

function objects(seed) {
  const next = random(seed);
  const kept = new Map();
  for (let i = 0; i < 200000; i++) {
    const key = next() % 5000;
    kept.set(key, { key, text: 'x'.repeat(next() % 200), list: Array.from({ length: next() % 20 }, (_, j) => j * key) });
  }
  return digest(JSON.stringify([...kept.values()].sort((a, b) => a.key - b.key)));
}

function buffers(seed) {
  const next = random(seed);
  const kept = [];
  let sum = 0;
  for (let i = 0; i < 20000; i++) {
    const at = next() % 200;
    if (kept[at]) sum = (sum + kept[at][kept[at].length - 1]) >>> 0;
    kept[at] = Buffer.alloc(1 + (next() % (i % 100 ? 3000 : 1500000)), i & 255);
  }
  return sum;
}

function compressed(seed) {
  const next = random(seed);
  const data = Buffer.from(Array.from({ length: 400000 }, () => 97 + (next() % 7)));
  const results = [];
  for (const [pack, unpack] of [
    [zlib.gzipSync, zlib.gunzipSync],
    [zlib.deflateRawSync, zlib.inflateRawSync],
    [zlib.brotliCompressSync, zlib.brotliDecompressSync],
  ]) {
    const packed = pack(data);
    results.push(packed.length, unpack(packed).equals(data));
  }
  return results;
}

function secrets() {
  const key = crypto.createHash('sha256').update('key').digest();
  const cipher = crypto.createCipheriv('aes-256-gcm', key, Buffer.alloc(12));
  const text = Buffer.concat([cipher.update(Buffer.alloc(1000000, 7)), cipher.final(), cipher.getAuthTag()]);
  const pair = crypto.generateKeyPairSync('rsa', { modulusLength: 1024 });
  const signature = crypto.sign('sha256', text, pair.privateKey);
  return [digest(text), crypto.verify('sha256', text, pair.publicKey, signature),
    digest(crypto.scryptSync('password', 'salt', 64)), digest(crypto.pbkdf2Sync('p', 's', 2000, 32, 'sha512'))];
}

async function wasm() {
  // (func (export "f") (param i32) (result i32) local.get 0 i32.const 7 i32.mul), and a memory.
  const code = Buffer.from(['0061736d01000000', '01060160017f017f', '03020100', '0503010001',
    '07050101660000', '0a09010700200041076c0b'].join(''), 'hex');
  const { instance } = await WebAssembly.instantiate(code);
  return instance.exports.f(6);
}

async function served() {
  const server = http.createServer((request, response) => {
    let length = 0;
    request.on('data', (part) => { length += part.length; });
    request.on('end', () => response.end(JSON.stringify({ length, url: request.url })));
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  const { port } = server.address();
  const answers = await Promise.all(Array.from({ length: 300 }, (_, i) => fetch(`http://127.0.0.1:${port}/${i}`, {
    method: 'POST', body: 'y'.repeat(i * 100),
  }).then((answer) => answer.json())));
  server.closeAllConnections();
  server.close();
  return digest(JSON.stringify(answers));
}

if (isMainThread) {
  (async () => {
    console.log('objects', objects(1));
    console.log('buffers', buffers(2));
    console.log('compressed', ...compressed(3));
    console.log('secrets', ...secrets());
    console.log('wasm', await wasm());
    console.log('served', await served());
    const results = await Promise.all(Array.from({ length: 8 }, (_, i) => new Promise((done, fail) => {
      const worker = new Worker(__filename, { workerData: i });
      worker.on('message', done);
      worker.on('error', fail);
    })));
    console.log('workers', ...results);
    // Threads that are ended in the middle of their work.
    for (let i = 0; i < 10; i++) {
      const worker = new Worker(__filename, { workerData: -1 });
      await new Promise((done) => setTimeout(done, 60));
      await worker.terminate();
    }
    const streams = await Promise.all(Array.from({ length: 20 }, (_, i) => new Promise((done, fail) =>
      zlib.gzip(Buffer.alloc(300000, i), (error, data) => (error ? fail(error) : done(data.length))))));
    console.log('streams', ...streams);
    global.gc();
    console.log('done');
  })();
} else if (workerData < 0) {
  for (let i = 0; ; i++) buffers(i);
} else {
  parentPort.postMessage([objects(workerData), buffers(workerData), compressed(workerData)].join(' '));
}
