"use strict";
// What belongs to what.
function options(select, all, entries) {
  const chosen = select.value;
  select.replaceChildren(make("option", { value: "" }, all), ...entries.map(([value, text]) => make("option", { value }, text)));
  if (entries.some(([value]) => value === chosen)) select.value = chosen;
}
function counted(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}
function nodes() { return Array.from({ length: COUNT }, (_, node) => node); }

function drawChoices() {
  const precisions = counted(plan().precision).map(([is, number]) => [is, `${{ ...PRECISION, "-": "no floating point" }[is]} (${count(number)})`]);
  options(byId("decisions-precision"), "any", precisions);
  options(byId("decisions-op"), "any", counted(nodes().map(opOf)).map(([op, number]) => [op, `${op} (${count(number)})`]));
  options(byId("decisions-rule"), "any", counted(nodes().map(ruleOf)).map(([rule, number]) => [rule, `${rule} (${count(number)})`]));
}

// Copy a text, and say on the button whether that went well.
async function copyText(text, button) {
  let done = true;
  try { await navigator.clipboard.writeText(text); }
  catch { // a page from a file may lack the right, or an older browser the clipboard
    const field = make("textarea", { readonly: "" });
    field.value = text;
    button.after(field);
    field.select();
    done = document.execCommand("copy");
    field.remove();
  }
  button.textContent = done ? "Copied" : "Not copied";
}

function clearFilters() {
  for (const id of ["search", "precision", "op", "rule"]) byId(`decisions-${id}`).value = "";
  byId("decisions-differ").checked = false;
  STATE.module = 0;
}

function start() {
  for (const name of document.querySelectorAll(".low-name")) name.textContent = LOW;
  for (const id of ["search", "precision", "op", "rule", "differ"]) byId(`decisions-${id}`).addEventListener("input", filterDecisions);
  byId("decisions-clear").addEventListener("click", () => { clearFilters(); filterDecisions(); });
  byId("casts-search").addEventListener("input", filterCasts);
  byId("map-weight").addEventListener("input", drawMap);
  byId("map-tree").addEventListener("keydown", mapKey);
  byId("modules-what").addEventListener("input", drawModules);
  byId("modules").addEventListener("click", (event) => { const line = event.target.closest("tr[data-module]"); if (line) toggleModule(line); });
  byId("modules").addEventListener("keydown", moduleKey);
  byId("modules-shut").addEventListener("click", () => { OPENED.clear(); OPENED.add(0); drawModules(); });
  byId("detail-close").addEventListener("click", hideNode);
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", () => copyText(button.dataset.copy, button));
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !byId("detail").hidden) hideNode(); });
  byId("decisions-differ-label").hidden = DATA.plans.length < 2;
  for (const button of document.querySelectorAll("button[data-rule]")) {
    button.addEventListener("click", () => {
      clearFilters();
      byId("decisions-rule").value = button.dataset.rule;
      byId("decisions-precision").value = "F";
      filterDecisions();
      byId("decisions").scrollIntoView();
    });
  }
  const choice = byId("strategy");
  if (choice) choice.addEventListener("input", () => { STATE.plan = Number(choice.value); changed(); });
  window.addEventListener("beforeprint", () => { for (const folded of document.querySelectorAll("details")) folded.open = true; });
  let drawnAt = byId("map-tree").clientWidth;
  new ResizeObserver(() => {
    const width = byId("map-tree").clientWidth;
    if (width !== drawnAt) { drawnAt = width; drawMap(); }
  }).observe(byId("map-tree"));
  STATE.listeners.push(drawChoices, filterDecisions, filterCasts, drawModules, drawMap);
  changed();
  document.documentElement.dataset.ready = "true";
}
start();
