"use strict";
const data = JSON.parse(document.getElementById("profile").textContent);
const byId = (id) => document.getElementById(id);
const metric = byId("metric"), design = byId("design"), key = byId("key"), search = byId("search");
const ROWS = 25; // More are shown where a reader searches.
const FOUND = 500;
let path = []; // The functions that the flame graph is zoomed to.

const number = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const percent = (part, whole) => (whole ? ((100 * part) / whole).toFixed(1) + " %" : "");

function sums(rows) {
  const found = new Map();
  for (const row of rows) {
    const label = data.labels[row.labels[key.value]];
    found.set(label, (found.get(label) || 0) + row.costs[metric.value]);
  }
  return found;
}

function cell(text) {
  const element = document.createElement("td");
  element.textContent = text;
  return element;
}

function showTable() {
  const chosen = Number(design.value);
  const all = data.designs.map(sums);
  const total = [...all[chosen].values()].reduce((sum, value) => sum + value, 0);
  const wanted = search.value.toLowerCase();
  const labels = [...all[chosen]]
    .filter(([label, value]) => value > 0 && label.toLowerCase().includes(wanted))
    .sort((one, other) => other[1] - one[1]);
  const body = byId("rows");
  body.replaceChildren();
  const most = wanted ? FOUND : ROWS;
  for (const [label, value] of labels.slice(0, most)) {
    const row = document.createElement("tr");
    const first = codeOf(label) ? chooser(label) : cell(label);
    const bar = document.createElement("i");
    bar.style.width = total ? (100 * value) / total + "%" : "0";
    first.prepend(bar);
    row.append(first, cell(percent(value, total)));
    for (const sum of all) row.append(cell(number.format(sum.get(label) || 0)));
    body.append(row);
  }
  const more = labels.length - most;
  byId("more").textContent = more > 0 ? `${more} more: search for them by name.` : labels.length ? "" : "Nothing found.";
}

function tree() {
  const top = { label: "all", value: 0, children: new Map(), line: "", path: [] };
  for (const row of data.designs[Number(design.value)]) {
    const value = row.costs[metric.value];
    if (!value) continue;
    top.value += value;
    let node = top;
    for (const index of data.stacks[row.stack]) {
      const frame = data.frames[index];
      let next = node.children.get(frame.function);
      if (!next) {
        const path = [...node.path, frame.function];
        next = { label: frame.function, value: 0, children: new Map(), line: frame.line, path };
        node.children.set(frame.function, next);
      }
      next.value += value;
      node = next;
    }
  }
  return top;
}

function color(label) {
  let hash = 0;
  for (const letter of label) hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
  return `hsl(${hash % 55} ${55 + (hash >> 8) % 25}% var(--flame))`;
}

function showFlame() {
  const flame = byId("flame");
  flame.replaceChildren();
  const whole = tree();
  let node = whole;
  path = path.filter((label) => (node.children.has(label) ? (node = node.children.get(label)) : false));
  const wanted = search.value.toLowerCase();
  const draw = (of, depth, left, width) => {
    if (width < 0.15 || depth > 60) return depth;
    const box = document.createElement("button");
    box.type = "button";
    box.style.cssText = `left:${left}%;width:${width}%;top:${depth * 1.4}rem;background:${color(of.label)}`;
    box.textContent = of.label;
    box.title = `${of.label}\n${of.line}\n${percent(of.value, whole.value)}, ${number.format(of.value)}`;
    if (wanted && of.label.toLowerCase().includes(wanted)) box.className = "found";
    box.addEventListener("click", () => {
      // A click on the outermost box goes back by one.
      path = of === node ? path.slice(0, -1) : of.path;
      showFlame();
    });
    flame.append(box);
    let deepest = depth, at = left;
    const children = [...of.children.values()].sort((one, other) => other.value - one.value);
    for (const child of children) {
      const share = (width * child.value) / of.value;
      deepest = Math.max(deepest, draw(child, depth + 1, at, share));
      at += share;
    }
    return deepest;
  };
  const depth = node.value ? draw(node, 0, 0, 100) : -1;
  flame.style.height = `${(depth + 1) * 1.4}rem`;
}

// Source and assembly: the costs of a line are those of its instructions.

function codeOf(label) {
  return key.value === "function" && data.code.some((one) => one.function === label);
}

function chooser(label) {
  const element = document.createElement("td");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = label;
  button.title = "Show its code";
  button.addEventListener("click", () => {
    byId("function").value = data.code.findIndex((one) => one.function === label);
    showCode();
    byId("function").scrollIntoView({ block: "start" });
  });
  element.append(button);
  return element;
}

function costsByFrame() {
  const costs = new Map();
  for (const row of data.designs[Number(design.value)]) {
    const stack = data.stacks[row.stack];
    const at = stack[stack.length - 1];
    costs.set(at, (costs.get(at) || 0) + row.costs[metric.value]);
  }
  return costs;
}

function codeRow(texts, share) {
  const row = document.createElement("tr");
  row.append(...texts.map(cell));
  if (share) row.style.background = `color-mix(in srgb, #c2410c ${Math.round(8 + 42 * share)}%, transparent)`;
  return row;
}

function showCode() {
  const body = byId("code");
  if (!body) return;
  const chosen = data.code[Number(byId("function").value)];
  const costs = costsByFrame();
  const total = [...costs.values()].reduce((sum, value) => sum + value, 0);
  const assembly = byId("view").value === "assembly";
  const parts = assembly ? (chosen.assembly.length ? [["", chosen.assembly]] : []) : Object.entries(chosen.source);
  body.replaceChildren();
  let unread = false;
  for (const [file, runs] of parts) {
    if (file) body.append(codeRow(["", "", file], 0));
    runs.forEach((run, index) => {
      if (index) body.append(codeRow(["", "", "…"], 0));
      for (const [place, text, frames] of run) {
        const cost = frames.reduce((sum, frame) => sum + (costs.get(frame) || 0), 0);
        const where = assembly ? place.toString(16) : String(place);
        unread = unread || text === null;
        body.append(codeRow([cost ? percent(cost, total) : "", where, text || ""], total ? cost / total : 0));
      }
    });
  }
  const missing = assembly
    ? "The file has no symbol for this function, or is not here any more."
    : "No line numbers: build with -g, or install the debug information.";
  byId("uncoded").textContent = !parts.length ? missing : unread ? "The source is not here: only numbers of lines are known." : "";
}

// Memory over time: a column for each phase, a row for each part of a mapping.

const LABEL = 0, START = 1, SIZE = 2, PHASE = 3, COSTS = 4;
const memory = byId("memory"), heat = byId("heat");
const cellsOf = (label) => data.phases[Number(design.value)].filter((cell) => cell[LABEL] === label);
const costOf = (cell) => cell[COSTS + data.metrics.indexOf(metric.value)];
const mebibytes = (size) => number.format(size / 2 ** 20) + " MB";

function listMemory() {
  const sums = new Map();
  for (const cell of data.phases[Number(design.value)]) {
    sums.set(cell[LABEL], (sums.get(cell[LABEL]) || 0) + costOf(cell));
  }
  const chosen = memory.value;
  const sorted = [...sums].filter(([, sum]) => sum > 0).sort((one, other) => other[1] - one[1]);
  memory.replaceChildren(...sorted.slice(0, ROWS).map(([label]) => new Option(data.labels[label], label)));
  if (sorted.some(([label]) => String(label) === chosen)) memory.value = chosen;
}

let drawn = null; // The heat map that is shown: what a place in it is.

function showHeat() {
  const cells = memory.value === "" ? [] : cellsOf(Number(memory.value));
  heat.hidden = !cells.length;
  if (!cells.length) {
    drawn = null;
    byId("heated").textContent = "Nothing to show.";
    return;
  }
  const starts = [...new Set(cells.map((cell) => cell[START]))].sort((one, other) => one - other);
  const row = new Map(starts.map((start, index) => [start, index]));
  const columns = 1 + Math.max(...data.phases.flat().map((cell) => cell[PHASE]));
  const height = Math.max(4, Math.min(16, Math.floor(320 / starts.length)));
  const width = Math.max(8, Math.floor(640 / columns));
  heat.width = columns * width;
  heat.height = starts.length * height;
  const most = Math.max(...cells.map(costOf));
  const context = heat.getContext("2d");
  for (const cell of cells) {
    if (!costOf(cell)) continue;
    context.fillStyle = `rgb(194 65 12 / ${(0.1 + 0.9 * Math.sqrt(costOf(cell) / most)).toFixed(3)})`;
    context.fillRect(cell[PHASE] * width, row.get(cell[START]) * height, width - 1, height - 1);
  }
  drawn = { cells, starts, width, height };
  byId("heated").textContent =
    `A column is ${number.format(data.phase)} instructions, a row ${mebibytes(cells[0][SIZE])} that something was` +
    ` counted for, the lowest address on top; the darkest has ${number.format(most)}.`;
}

heat.addEventListener("pointermove", (event) => {
  if (!drawn) return;
  const scale = heat.width / heat.clientWidth;
  const phase = Math.floor((event.offsetX * scale) / drawn.width);
  const start = drawn.starts[Math.floor((event.offsetY * scale) / drawn.height)];
  const found = drawn.cells.find((cell) => cell[PHASE] === phase && cell[START] === start);
  if (start === undefined) return;
  const from = number.format(phase * data.phase);
  byId("heated").textContent =
    `From instruction ${from}, 0x${start.toString(16)}: ${number.format(found ? costOf(found) : 0)}.`;
});

// Misses of TLBs of any size.

const reach = byId("reach");
const LINES = ["#c2410c", "#2563eb", "#15803d"];

function svg(name, attributes, text = "") {
  const element = document.createElementNS(byId("curve").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

function showCurve() {
  if (!reach) return;
  const { entries, sizes, tlb } = data.locality;
  const { misses } = data.locality.memory[Number(reach.value)];
  const curve = byId("curve");
  const most = Math.max(...misses.flat(), 1e-6);
  const left = 56, right = 624, top = 12, bottom = 216;
  const x = (count) => left + ((right - left) * Math.log2(count)) / Math.log2(entries[entries.length - 1]);
  const y = (share) => bottom - ((bottom - top) * share) / most;
  curve.replaceChildren();
  for (const part of [0, 0.5, 1]) {
    const at = y(part * most);
    curve.append(svg("line", { x1: left, x2: right, y1: at, y2: at, class: "grid" }));
    curve.append(svg("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, (100 * part * most).toPrecision(2) + " %"));
  }
  for (const count of entries.filter((count) => Number.isInteger(Math.log2(count) / 4))) {
    const label = count >= 1024 ? count / 1024 + "K" : count;
    curve.append(svg("text", { x: x(count), y: bottom + 18, "text-anchor": "middle" }, label));
  }
  curve.append(svg("text", { x: (left + right) / 2, y: bottom + 38, "text-anchor": "middle" }, "TLB entries"));
  curve.append(svg("line", { x1: x(tlb), x2: x(tlb), y1: top, y2: bottom, class: "own" }));
  misses.forEach((shares, size) => {
    const points = shares.map((share, index) => `${x(entries[index]).toFixed(1)},${y(share).toFixed(1)}`);
    curve.append(svg("polyline", { points: points.join(" "), stroke: LINES[size], class: "curve" }));
  });
  const legend = byId("legend");
  legend.replaceChildren();
  sizes.forEach((size, index) => {
    const mark = document.createElement("b");
    mark.style.color = LINES[index];
    mark.textContent = "\u2014 ";
    legend.append(mark, `pages of ${size}; `);
  });
  legend.append(`dashed: the largest TLB, ${number.format(tlb)} entries`);
}

if (reach) {
  data.locality.memory.forEach((one, index) => reach.append(new Option(one.name, index)));
  reach.addEventListener("change", showCurve);
}
memory.addEventListener("change", showHeat);

function show() {
  showTable();
  showFlame();
  listMemory();
  showHeat();
  showCurve();
  showCode();
}
if (byId("function")) {
  data.code.forEach((one, index) => byId("function").append(new Option(`${one.function} (${one.library})`, index)));
  for (const control of [byId("function"), byId("view")]) control.addEventListener("change", showCode);
}
for (const control of [metric, design, key]) control.addEventListener("change", show);
search.addEventListener("input", show);
byId("reset").addEventListener("click", () => {
  path = [];
  showFlame();
});
show();
