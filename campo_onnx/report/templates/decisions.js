"use strict";
// Every decision and every Cast, and all of one node beside them.
const LOWER_NAMES = DATA.names.map((name) => name.toLowerCase());
const LOWER_REASONS = DATA.reasons.map((reason) => reason.toLowerCase());
const differs = (node) => DATA.plans.some((of) => of.precision[node] !== DATA.plans[0].precision[node]);

const decisionTable = new LongTable({
  table: byId("decisions-table"), scroll: byId("decisions-scroll"), counter: byId("decisions-count"), what: "decisions",
  sortBy: [4, true], choose: showNode,
  columns: [
    { title: "node", width: "27%", key: (n) => DATA.names[n], cell: (n) => DATA.names[n] },
    { title: "operator", width: "112px", key: opOf, cell: opOf },
    { title: "runs in", width: "72px", key: (n) => precisionOf(n), cell: precisionCell },
    { title: "in FP32", width: "94px", number: true, key: (n) => DATA.fp32_us[n], cell: (n) => time(DATA.fp32_us[n]) },
    { title: `${LOW} saves`, width: "112px", number: true, key: (n) => plan().gain_us[n], cell: (n) => time(plan().gain_us[n]) },
    { title: "casts", width: "88px", number: true, optional: true, key: (n) => plan().cast_us[n], cell: (n) => time(plan().cast_us[n]) },
    { title: "why", key: whyOf, cell: whyOf },
  ],
});

function precisionCell(node) {
  const is = precisionOf(node);
  return make("span", { class: `key ${KIND[is]}` }, PRECISION[is].replace("FP", "").replace(", given", "") || "-");
}

const castTable = new LongTable({
  table: byId("casts-table"), scroll: byId("casts-scroll"), counter: byId("casts-count"), what: "casts",
  sortBy: [4, true], choose: (row) => { const [, , producer, consumers] = plan().casts[row]; showNode(producer >= 0 ? producer : consumers[0]); },
  columns: [
    { title: "tensor", key: (r) => plan().casts[r][0], cell: (r) => plan().casts[r][0] },
    { title: "from and to", width: "130px", key: (r) => plan().casts[r][1], cell: (r) => plan().casts[r][1].toUpperCase().replace("->", "→") },
    { title: "made by", width: "30%", optional: true, key: (r) => producerOf(r), cell: (r) => producerOf(r) },
    { title: "readers", width: "90px", number: true, key: (r) => plan().casts[r][3].length, cell: (r) => count(plan().casts[r][3].length) },
    { title: "time", width: "110px", number: true, key: (r) => plan().casts[r][4], cell: (r) => time(plan().casts[r][4]) },
  ],
});
function producerOf(row) { const at = plan().casts[row][2]; return at < 0 ? "an input of the graph" : DATA.names[at]; }

function filterDecisions() {
  const matches = wordsIn(byId("decisions-search").value);
  const precision = byId("decisions-precision").value, op = byId("decisions-op").value, rule = byId("decisions-rule").value;
  const differing = byId("decisions-differ").checked, module = STATE.module, of = plan();
  const rows = [];
  for (let node = 0; node < COUNT; node++) {
    if (precision && of.precision[node] !== precision) continue;
    if (op && opOf(node) !== op) continue;
    if (rule && ruleOf(node) !== rule) continue;
    if (differing && !differs(node)) continue;
    if (module && !isIn(node, module)) continue;
    if (!matches(`${LOWER_NAMES[node]} ${opOf(node).toLowerCase()} ${LOWER_REASONS[of.why[node]]} ${LOWER_REASONS[of.reason[node]]}`)) continue;
    rows.push(node);
  }
  decisionTable.show(rows, COUNT);
  if (module) byId("decisions-count").textContent += `, in ${moduleName(module)}`;
}

function filterCasts() {
  const matches = wordsIn(byId("casts-search").value), casts = plan().casts;
  castTable.show([...casts.keys()].filter((row) => {
    const [tensor, kind, producer, consumers] = casts[row];
    return matches(`${tensor} ${kind} ${[producer, ...consumers].map((n) => (n < 0 ? "" : DATA.names[n])).join(" ")}`.toLowerCase());
  }), casts.length);
}

// A name as a regular expression that matches it alone, within single quotes of a shell.
const escaped = (name) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replaceAll("'", "'\\''");

// A piece of a command, and a button that copies it.
function copied(text) {
  const button = make("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", () => copyText(text, button));
  return make("span", { class: "command" }, make("code", {}, text), " ", button);
}

// One node in full.
function showNode(node) {
  if (node === undefined) return;
  const is = precisionOf(node), of = plan();
  byId("detail-title").textContent = DATA.names[node];
  const facts = make("dl", { class: "facts" });
  const fact = (name, value) => facts.append(make("dt", {}, name), make("dd", {}, value));
  fact("operator", `${opOf(node)} (${DATA.families[DATA.family_of_op[DATA.op[node]]]})`);
  fact("op list", DATA.classes[of.class[node]]);
  fact("decided by", ruleOf(node));
  if (DATA.shapes) fact("output", DATA.shapes[DATA.shape[node]]);
  fact("in FP32", time(DATA.fp32_us[node]));
  fact(`in ${LOW}`, `${time(lowOf(node))}, without casts`);
  fact("casts around it", time(of.cast_us[node]));
  if (DATA.bytes && DATA.launches[node]) fact("reads and writes", DATA.bytes[node] === of.bytes[node] ? size(DATA.bytes[node]) : `${size(DATA.bytes[node])}, ${size(of.bytes[node])} as planned`);
  for (const [padded, gain, pads] of of.pads) if (padded === node) fact("zero-padded", `its kernel saves ${time(gain)}, pads and slices cost ${time(pads)}`);
  fact("cost from", DATA.sources ? DATA.sources[DATA.source[node]] : "the plan file");
  const module = DATA.module[node];
  const opened = make("button", { type: "button", class: "link", onclick: () => { hideNode(); showModule(module); } }, moduleName(module));
  fact("module", opened);
  if (DATA.lines[DATA.line[node]]) fact("source line", make("code", {}, DATA.lines[DATA.line[node]]));
  fact("keep it in FP32", copied(`--keep-fp32 '${escaped(DATA.names[node])}'`));
  if (DATA.plans.length > 1) {
    const all = make("ul");
    for (const other of DATA.plans) all.append(make("li", {}, `${other.title}: ${PRECISION[other.precision[node]]}`));
    fact("strategies", all);
  }
  byId("detail-body").replaceChildren(
    make("p", {}, make("span", { class: `key ${KIND[is]}` }, PRECISION[is])),
    make("p", { class: "reason" }, whyOf(node)), facts,
    ...castsOf(node), ...neighbours("Reads from", DATA.reads?.[node]), ...neighbours("Read by", READERS?.[node]));
  if (byId("detail").hidden) OPENED_FROM = document.activeElement;
  byId("detail").hidden = false;
  byId("detail-title").focus({ preventScroll: true });
}
let OPENED_FROM = null;

function hideNode() {
  byId("detail").hidden = true;
  if (OPENED_FROM?.isConnected) OPENED_FROM.focus({ preventScroll: true });
}

function castsOf(node) {
  const rows = derived().castsOf.get(node) || [];
  if (!rows.length) return [];
  const list = make("ul");
  for (const row of rows) {
    const [tensor, kind, producer, consumers, us] = plan().casts[row];
    const where = producer === node ? "output" : "input";
    const shared = consumers.length > 1 ? `, shared by ${count(consumers.length)} readers` : "";
    list.append(make("li", {}, `${tensor} (${where}${shared}): ${kind.toUpperCase().replace("->", "→")}, ${time(us)}`));
  }
  return [make("h3", {}, "Casts"), list];
}

function neighbours(title, nodes) {
  if (!nodes?.length) return [];
  const list = make("ul");
  for (const node of nodes.slice(0, 12)) {
    list.append(make("li", {}, make("button", { type: "button", class: "link", onclick: () => showNode(node) }, DATA.names[node]),
      ` (${opOf(node)}, ${PRECISION[precisionOf(node)]})`));
  }
  if (nodes.length > 12) list.append(make("li", {}, `${count(nodes.length - 12)} more`));
  return [make("h3", {}, title), list];
}
