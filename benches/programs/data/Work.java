import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.zip.CRC32;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

/** Memory from all sides of the virtual machine: its heap, direct buffers, zlib, many threads. */
public class Work {
    static long objects(long seed) {
        Map<Integer, List<String>> kept = new HashMap<>();
        long state = seed;
        long sum = 0;
        for (int i = 0; i < 200_000; i++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            int key = (int) (state >>> 50);
            List<String> list = kept.computeIfAbsent(key, k -> new ArrayList<>());
            list.add("entry " + i + " of " + seed);
            if (list.size() > 6) {
                sum += kept.remove(key).stream().mapToInt(String::length).sum();
            }
        }
        return sum;
    }

    static long direct(long seed) {
        ByteBuffer[] kept = new ByteBuffer[40];
        long state = seed;
        long sum = 0;
        for (int i = 0; i < 800; i++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            int at = (int) (state >>> 40) % kept.length;
            at = at < 0 ? -at : at;
            if (kept[at] != null) {
                sum += kept[at].get(kept[at].capacity() - 1);
            }
            int size = 1 + (int) (state >>> 33) % 60_000;
            kept[at] = ByteBuffer.allocateDirect(size < 1 ? 1 : size);
            kept[at].put(kept[at].capacity() - 1, (byte) i);
        }
        return sum;
    }

    static long packed(long seed) throws Exception {
        byte[] data = new byte[200_000];
        for (int i = 0; i < data.length; i++) {
            data[i] = (byte) (i * seed >>> 7 & 15);
        }
        CRC32 crc = new CRC32();
        for (int level = 1; level <= 9; level += 2) {
            Deflater deflater = new Deflater(level);
            deflater.setInput(data);
            deflater.finish();
            byte[] out = new byte[data.length + 1000];
            int length = deflater.deflate(out);
            deflater.end();
            crc.update(out, 0, length);
            Inflater inflater = new Inflater();
            inflater.setInput(out, 0, length);
            byte[] back = new byte[data.length];
            if (inflater.inflate(back) != data.length || !java.util.Arrays.equals(back, data)) {
                throw new IllegalStateException("deflated data differs");
            }
            inflater.end();
        }
        return crc.getValue();
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(8, task -> {
            Thread thread = new Thread(task);
            thread.setDaemon(true);
            return thread;
        });
        List<Future<String>> futures = new ArrayList<>();
        for (int i = 1; i <= 16; i++) {
            final long seed = i;
            futures.add(pool.submit(() -> objects(seed) + " " + direct(seed) + " " + packed(seed)));
        }
        for (Future<String> future : futures) {
            System.out.println(future.get());
        }
        pool.shutdown();
        ConcurrentHashMap<String, Integer> shared = new ConcurrentHashMap<>();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < 400; i++) {
            final int number = i;
            Thread thread = new Thread(null, () -> {
                for (int j = 0; j < 200; j++) {
                    shared.merge("key " + (number * j % 97), 1, Integer::sum);
                }
            }, "t" + i, 64 << 10);
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println(shared.values().stream().mapToInt(Integer::intValue).sum());
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        Process process = new ProcessBuilder("sort").start();
        try (var out = process.getOutputStream()) {
            for (int i = 0; i < 20_000; i++) {
                out.write((i * 7919L % 20_011 + "\n").getBytes(StandardCharsets.US_ASCII));
            }
        }
        digest.update(process.getInputStream().readAllBytes());
        System.out.printf("%s %d%n", java.util.HexFormat.of().formatHex(digest.digest()), process.waitFor());
    }
}
