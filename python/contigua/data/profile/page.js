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

function show() {
  showTable();
  showFlame();
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
