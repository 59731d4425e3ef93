"use strict";
// What the page shows, read from its data block. Names are text of strangers: they only ever become
// text nodes, never markup.
const DATA = JSON.parse(document.getElementById("data").textContent);
const COUNT = DATA.names.length;

const STATE = { plan: DATA.chosen || 0, module: 0, listeners: [] };
const plan = () => DATA.plans[STATE.plan];
function changed() { for (const listener of STATE.listeners) listener(); }

// One element: its attributes, and children that are elements or text.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
const byId = (id) => document.getElementById(id);

const grouped = new Intl.NumberFormat("en-US");
const fixed = (digits) => new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const [one, two] = [fixed(1), fixed(2)];
// As on the command line: microseconds below a millisecond.
const time = (us) => (Math.abs(us) >= 1000 ? two.format(us / 1000) + " ms" : one.format(us) + " us");
const count = (number) => grouped.format(number);
const size = (bytes) => (bytes >= 1e9 ? two.format(bytes / 1e9) + " GB" : bytes >= 1e6 ? one.format(bytes / 1e6) + " MB" : one.format(bytes / 1e3) + " kB");
const share = (part, whole) => (whole ? one.format((100 * part) / whole) + " %" : "-");

const LOW = DATA.low;
const PRECISION = { L: LOW, A: LOW + ", given", F: "FP32", "-": "-" };
const KIND = { L: "low", A: "other", F: "fp32", "-": "other" };
const precisionOf = (node, of = plan()) => of.precision[node];
const opOf = (node) => DATA.ops[DATA.op[node]];
const whyOf = (node) => DATA.reasons[plan().why[node]];
const ruleOf = (node) => DATA.rules[plan().rule[node]];
const lowOf = (node) => DATA.fp32_us[node] - plan().gain_us[node];

// What is counted of a node and a Cast: before, as planned, and the Casts that are charged to it. Bytes and
// launches are known only where the graph is.
const MEASURES = { time: { text: time } };
if (DATA.bytes) {
  MEASURES.bytes = { text: size };
  MEASURES.launches = { text: count };
}

// Casts of a plan by node, and every measure of a node. Made when first asked for.
const DERIVED = new Map();
function derived() {
  const of = plan();
  if (!DERIVED.has(of)) {
    const castsOf = new Map(), dropped = new Set(), casts = {}, before = {}, planned = {};
    for (const what of Object.keys(MEASURES)) [casts[what], planned[what]] = [new Float64Array(COUNT), new Float64Array(COUNT)];
    of.casts.forEach(([, kind, producer, consumers, us], row) => {
      for (const node of new Set([producer, ...consumers])) {
        if (node >= 0) castsOf.set(node, [...(castsOf.get(node) || []), row]);
      }
      if (kind === "dropped") dropped.add(producer);
      else if (kind !== "reused") {
        const payer = producer >= 0 ? producer : consumers[0];
        if (payer === undefined) return;
        casts.time[payer] += us;
        if (DATA.bytes) { casts.bytes[payer] += of.cast_bytes[row]; casts.launches[payer] += 1; }
      }
    });
    before.time = DATA.fp32_us;
    if (DATA.bytes) [before.bytes, before.launches] = [DATA.bytes, DATA.launches];
    for (let node = 0; node < COUNT; node++) {
      if (dropped.has(node)) continue;
      planned.time[node] = of.precision[node] === "L" ? lowOf(node) : DATA.fp32_us[node];
      if (DATA.bytes) [planned.bytes[node], planned.launches[node]] = [of.bytes[node], DATA.launches[node]];
    }
    DERIVED.set(of, { castsOf, casts, before, planned });
  }
  return DERIVED.get(of);
}

// Readers of every node, from what nodes read. Known only where the graph is.
const READERS = DATA.reads ? DATA.names.map(() => []) : null;
if (READERS) DATA.reads.forEach((producers, node) => { for (const producer of producers) READERS[producer].push(node); });

// Modules: children and own nodes, in the order of the graph.
const CHILDREN = DATA.modules.map(() => []);
const MEMBERS = DATA.modules.map(() => []);
DATA.parents.forEach((parent, module) => { if (parent >= 0) CHILDREN[parent].push(module); });
DATA.module.forEach((module, node) => MEMBERS[module].push(node));

function pathOf(module) {
  const path = [];
  for (let at = module; at > 0; at = DATA.parents[at]) path.unshift(at);
  return path;
}
const moduleName = (module) => (module ? pathOf(module).map((at) => DATA.modules[at]).join(" / ") : "whole graph");
function isIn(node, module) {
  for (let at = DATA.module[node]; at >= 0; at = DATA.parents[at]) if (at === module) return true;
  return false;
}

// Sums of every module over its nodes. `weights(node)` is what widths stand for; `what` is summed up beside.
function sums(weights, what = "time") {
  const total = DATA.modules.map(() => ({ all: 0, low: 0, fp32: 0, nodes: 0, lowNodes: 0, before: 0, after: 0, casts: 0 }));
  const { casts, before, planned } = derived();
  const precision = plan().precision;
  for (let node = 0; node < COUNT; node++) {
    const sum = total[DATA.module[node]], weight = weights(node), is = precision[node];
    sum.all += weight;
    if (is === "L") { sum.low += weight; sum.lowNodes += 1; }
    if (is === "F") sum.fp32 += weight;
    sum.nodes += 1;
    sum.before += before[what][node];
    sum.after += planned[what][node] + casts[what][node];
    sum.casts += casts[what][node];
  }
  for (let module = total.length - 1; module > 0; module--) {
    const up = total[DATA.parents[module]];
    for (const key of Object.keys(up)) up[key] += total[module][key];
  }
  return total;
}
