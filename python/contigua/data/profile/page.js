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
    const first = cell(label);
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

function show() {
  showTable();
  showFlame();
}
for (const control of [metric, design, key]) control.addEventListener("change", show);
search.addEventListener("input", show);
byId("reset").addEventListener("click", () => {
  path = [];
  showFlame();
});
show();
