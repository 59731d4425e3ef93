"use strict";
// The graph as nested modules: a map that is drawn to the scale of what is opened, and a table.
const LEVEL_PX = 31, SMALLEST_PX = 3, MOST_LEVELS = 9;
const MAP = { root: 0, focus: null };
const WEIGHTS = {
  fp32: (node) => DATA.fp32_us[node],
  planned: (node) => derived().planned.time[node] + derived().casts.time[node],
  bytes: (node) => DATA.bytes[node],
  nodes: () => 1,
};

function drawMap() {
  const weigh = WEIGHTS[byId("map-weight").value], total = sums(weigh), map = byId("map-tree");
  const width = map.clientWidth, parts = [];
  let deepest = 0;
  const place = (entry, left, span, level) => {
    parts.push({ ...entry, left, span, level, whole: width });
    deepest = Math.max(deepest, level);
  };
  // Neighbours too narrow to be seen are one part, with the sum of their precisions.
  const open = (module, left, span, level) => {
    place({ module, sum: total[module] }, left, span, level);
    if (level + 1 >= MOST_LEVELS || !total[module].all) return;
    const scale = span / total[module].all;
    let at = left, narrow = null;
    const flush = () => {
      if (narrow && narrow.span >= 0.5) place({ many: narrow.many, within: module, sum: narrow }, narrow.left, narrow.span, level + 1);
      narrow = null;
    };
    for (const entry of inside(module)) {
      const sum = entry.module !== undefined ? total[entry.module] : nodeSum(entry.node, weigh(entry.node));
      const own = sum.all * scale;
      if (own >= SMALLEST_PX) {
        flush();
        if (entry.module !== undefined) open(entry.module, at, own, level + 1);
        else place({ node: entry.node, sum }, at, own, level + 1);
      } else {
        narrow ??= { left: at, span: 0, many: 0, all: 0, low: 0, fp32: 0, nodes: 0, lowNodes: 0 };
        narrow.span += own;
        narrow.many += 1;
        for (const key of ["all", "low", "fp32", "nodes", "lowNodes"]) narrow[key] += sum[key];
      }
      at += own;
    }
    flush();
  };
  open(MAP.root, 0, width, 0);
  map.style.height = `${(deepest + 1) * LEVEL_PX}px`;
  map.replaceChildren(...parts.map(drawn));
  MAP.focus = map.firstChild;
  if (MAP.focus) MAP.focus.tabIndex = 0;
  drawPath();
  tell(parts[0]);
}

function* inside(module) {
  const entries = [
    ...CHILDREN[module].map((child) => ({ module: child, at: firstIn(child) })),
    ...MEMBERS[module].map((node) => ({ node, at: node })),
  ];
  yield* entries.sort((a, b) => a.at - b.at);
}
const FIRST = new Map();
function firstIn(module) {
  if (!FIRST.has(module)) FIRST.set(module, Math.min(MEMBERS[module][0] ?? Infinity, ...CHILDREN[module].map(firstIn)));
  return FIRST.get(module);
}
function nodeSum(node, weight) {
  const is = precisionOf(node);
  return { all: weight, low: is === "L" ? weight : 0, fp32: is === "F" ? weight : 0, nodes: 1, lowNodes: is === "L" ? 1 : 0 };
}

function drawn(part) {
  const isNode = part.node !== undefined, is = isNode ? precisionOf(part.node) : null;
  const item = make("div", { role: "treeitem", "aria-level": part.level + 1, "aria-label": spoken(part), tabindex: -1,
    class: isNode ? KIND[is] : "module" });
  if (part.module !== undefined) item.setAttribute("aria-expanded", "true");
  item.style.left = `${(100 * part.left) / part.whole}%`;  // which paper has another width than the window
  item.style.top = `${part.level * LEVEL_PX}px`;
  item.style.width = `${(100 * part.span) / part.whole}%`;
  if (part.span < 12) item.style.padding = "0";
  if (part.span < 6) item.classList.add("thin");
  if (!isNode) {
    item.style.setProperty("--low-end", `${part.sum.all ? (100 * part.sum.low) / part.sum.all : 0}%`);
    item.style.setProperty("--fp32-end", `${part.sum.all ? (100 * (part.sum.low + part.sum.fp32)) / part.sum.all : 0}%`);
    item.append(strip(part.sum));
  }
  const text = isNode ? fitting(part.span, [bitsOf(is), DATA.names[part.node].split("/").pop()])
    : part.many ? "" : fitting(part.span, [label(part.module)]);
  if (text) item.prepend(make("span", { class: "name" }, text));
  item.addEventListener("click", () => enter(part, item));
  item.addEventListener("focus", () => tell(part));
  item.addEventListener("pointerenter", () => tell(part));
  item.entry = part;
  return item;
}
const bitsOf = (is) => ({ L: LOW.replace(/\D/g, ""), F: "32", A: "", "-": "" }[is]);

// As many of some words as there is room for: fewer than four letters of a word tell nothing.
const LETTER_PX = 6.4, BESIDE_PX = 12;
function fitting(span, words) {
  const room = (span - BESIDE_PX) / LETTER_PX, kept = [];
  let used = 0;
  for (const word of words) {
    if (used + Math.min(word.length, 4) > room) break;
    if (word) kept.push(word);
    used += word.length + 1;
  }
  return kept.join(" ");
}
const label = (module) => (module === MAP.root ? moduleName(module) : DATA.modules[module]);

function strip(sum) {
  const line = make("span", { class: "strip", "aria-hidden": "true" });
  for (const [kind, part] of [["low", sum.low], ["fp32", sum.fp32], ["other", sum.all - sum.low - sum.fp32]]) {
    const piece = make("span", { class: kind });
    piece.style.width = `${sum.all ? (100 * part) / sum.all : 0}%`;
    line.append(piece);
  }
  return line;
}

function spoken(part) {
  if (part.node !== undefined) {
    const node = part.node;
    return `${DATA.names[node]}: ${opOf(node)}, ${PRECISION[precisionOf(node)]}, ${time(DATA.fp32_us[node])} in FP32. ${whyOf(node)}`;
  }
  if (part.many) return `${count(part.many)} small parts of ${moduleName(part.within)}: ${count(part.sum.lowNodes)} of ${count(part.sum.nodes)} nodes in ${LOW}`;
  const sum = part.sum;
  return `${moduleName(part.module)}: ${count(sum.lowNodes)} of ${count(sum.nodes)} nodes in ${LOW}; ${time(sum.before)} in FP32, ${time(sum.after)} as planned, casts ${time(sum.casts)} of it`;
}
function tell(part) { byId("map-line").textContent = spoken(part); }

function enter(part, item) {
  focusOn(item);
  if (part.node !== undefined) showNode(part.node);
  else showModule(part.module ?? part.within);
}
function focusOn(item) {
  if (!item) return;
  if (MAP.focus) MAP.focus.tabIndex = -1;
  MAP.focus = item;
  item.tabIndex = 0;
  item.focus({ preventScroll: true });
}

// Open a module on the map; the table of decisions follows.
function showModule(module) {
  if (MAP.root === module) return;
  MAP.root = STATE.module = module;
  drawMap();
  filterDecisions();
  focusOn(MAP.focus);
}

function drawPath() {
  byId("map-path").replaceChildren(...[0, ...pathOf(MAP.root)].flatMap((module, index) => {
    const step = make("button", { type: "button", onclick: () => showModule(module) }, module ? DATA.modules[module] : "whole graph");
    return index ? [" / ", step] : [step];
  }));
}

function mapKey(event) {
  const items = [...byId("map-tree").children], at = event.target.entry;
  if (!at) return;
  const middle = at.left + at.span / 2, level = at.level;
  const on = (depth) => items.filter((item) => item.entry.level === depth);
  const move = {
    ArrowDown: () => on(level + 1).find((item) => item.entry.left + 0.01 >= at.left && item.entry.left < at.left + at.span),
    ArrowUp: () => on(level - 1).find((item) => item.entry.left <= middle && middle <= item.entry.left + item.entry.span),
    ArrowRight: () => on(level).find((item) => item.entry.left > at.left),
    ArrowLeft: () => on(level).reverse().find((item) => item.entry.left < at.left),
    Home: () => items[0],
  }[event.key];
  if (move) { event.preventDefault(); focusOn(move()); }
  else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); enter(at, event.target); }
  else if (event.key === "Backspace" || event.key === "Escape") {
    event.preventDefault();
    if (MAP.root) showModule(DATA.parents[MAP.root]);
  }
}

// The same as a table: modules by time, opened one by one.
const OPENED = new Set([0]);
function drawModules() {
  const what = byId("modules-what").value, measure = MEASURES[what].text;
  const total = sums((node) => derived().before[what][node], what), whole = total[0], table = byId("modules");
  const head = make("tr");
  for (const [title, width, number] of [["module", ""], ["nodes", "80px", true], [`in ${LOW}`, "84px", true], ["before", "104px", true],
    ["after", "104px", true], ["casts", "96px", true], ["share of the step", "17%"]]) {
    const cell = make("th", { scope: "col", class: number ? "number" : "" }, make("span", { class: "sort" }, title));
    if (width) cell.style.width = width;
    head.append(cell);
  }
  const body = make("tbody");
  const add = (module, level) => {
    const sum = total[module], children = CHILDREN[module], isOpen = OPENED.has(module);
    const toggle = children.length ? (isOpen ? "▾" : "▸") : "";
    const line = make("tr", { role: "row", "aria-level": level, "data-module": module, tabindex: module ? -1 : 0 });
    if (children.length) line.setAttribute("aria-expanded", String(isOpen));
    const name = make("td", { role: "gridcell" }, make("span", { class: "toggle", "aria-hidden": "true" }, toggle), DATA.modules[module] || "whole graph",
      DATA.kinds[module] ? make("span", { class: "quiet" }, ` ${DATA.kinds[module]}`) : "");
    name.style.paddingLeft = `${10 + 16 * (level - 1)}px`;
    const cell = (text) => make("td", { role: "gridcell", class: "number" }, text);
    const stack = strip(sum);
    stack.className = "stack";
    stack.style.width = `${whole.before ? (100 * sum.before) / whole.before : 0}%`;
    line.append(name, cell(count(sum.nodes)), cell(count(sum.lowNodes)), cell(measure(sum.before)), cell(measure(sum.after)), cell(measure(sum.casts)),
      make("td", { role: "gridcell" }, stack));
    body.append(line);
    if (isOpen) for (const child of [...children].sort((a, b) => total[b].before - total[a].before)) add(child, level + 1);
  };
  add(0, 1);
  const focused = document.activeElement?.dataset?.module;
  table.classList.add("rows");
  table.replaceChildren(make("thead", {}, head), body);
  if (focused !== undefined) body.querySelector(`[data-module="${focused}"]`)?.focus({ preventScroll: true });
}

function toggleModule(line) {
  const module = Number(line.dataset.module);
  if (!CHILDREN[module].length) return;
  if (!OPENED.delete(module)) OPENED.add(module);
  line.focus({ preventScroll: true });
  drawModules();
}

function moduleKey(event) {
  const line = event.target.closest("tr[data-module]");
  if (!line) return;
  const isOpen = line.getAttribute("aria-expanded");
  const to = { ArrowDown: line.nextElementSibling, ArrowUp: line.previousElementSibling }[event.key];
  if (to) { event.preventDefault(); to.tabIndex = 0; to.focus(); }
  else if ((event.key === "ArrowRight" && isOpen === "false") || (event.key === "ArrowLeft" && isOpen === "true") || event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    toggleModule(line);
  }
}
