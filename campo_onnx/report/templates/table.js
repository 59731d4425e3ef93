"use strict";
// A table of any length: only the rows in sight exist. Columns sort by their headers.
const ROW_PX = 31, BEYOND = 12, PRINTED = 200;

class LongTable {
  // columns: {title, width, number, optional, key(row), cell(row)}; choose(row) when a row is opened.
  constructor({ table, scroll, columns, choose, sortBy, counter, what }) {
    Object.assign(this, { table, scroll, columns, choose, counter, what, rows: [], chosen: null });
    [this.column, this.down] = sortBy;
    table.classList.add("rows");
    const head = make("tr");
    this.heads = columns.map((column, index) => {
      const cell = make("th", { scope: "col", class: this.classOf(column) },
        make("button", { type: "button", class: "sort", onclick: () => this.sort(index) }, column.title));
      if (column.width) cell.style.width = column.width;
      head.append(cell);
      return cell;
    });
    this.body = make("tbody");
    table.replaceChildren(make("thead", {}, head), this.body);
    scroll.addEventListener("scroll", () => this.draw(), { passive: true });
    table.addEventListener("keydown", (event) => this.move(event));
    new ResizeObserver(() => this.draw()).observe(scroll);
    this.rest = make("p", { class: "quiet printed" });
    scroll.after(this.rest);
    window.addEventListener("beforeprint", () => { this.printing = true; this.draw(); });
    window.addEventListener("afterprint", () => { this.printing = false; this.draw(); });
  }

  classOf(column) { return [column.number ? "number" : "", column.optional ? "optional" : ""].join(" ").trim(); }

  show(rows, all) {
    this.rows = rows;
    this.counter.textContent = rows.length === all
      ? `${count(all)} ${this.what}` : `${count(rows.length)} of ${count(all)} ${this.what}`;
    this.order();
    this.scroll.scrollTop = 0;
    this.drawn = null;
    this.draw();
  }

  sort(index) {
    this.down = index === this.column ? !this.down : Boolean(this.columns[index].number);
    this.column = index;
    this.order();
    this.drawn = null;
    this.draw();
  }

  order() {
    const { key } = this.columns[this.column], sign = this.down ? -1 : 1;
    const keys = new Map(this.rows.map((row) => [row, key(row)]));
    this.rows.sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * sign || a - b;
    });
    this.heads.forEach((head, index) => {
      if (index !== this.column) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      head.firstChild.textContent = this.columns[index].title + (index === this.column ? (this.down ? " ▼" : " ▲") : "");
    });
    this.table.setAttribute("aria-rowcount", this.rows.length + 1);
  }

  draw() {
    if (this.printing) {
      const drawn = Math.min(this.rows.length, PRINTED);
      this.drawn = null;
      this.body.replaceChildren(...Array.from({ length: drawn }, (_, index) => this.row(index)));
      this.rest.textContent = drawn < this.rows.length ? `The first ${count(drawn)}; the file has all ${count(this.rows.length)}.` : "";
      return;
    }
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW_PX) - BEYOND);
    const last = Math.min(this.rows.length, Math.ceil((this.scroll.scrollTop + this.scroll.clientHeight) / ROW_PX) + BEYOND);
    if (this.drawn === `${first} ${last}`) return;
    this.drawn = `${first} ${last}`;
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.row : null;
    const drawn = [this.gap(first)];
    for (let index = first; index < last; index++) drawn.push(this.row(index));
    drawn.push(this.gap(this.rows.length - last));
    this.body.replaceChildren(...drawn);
    if (focused !== null) this.body.querySelector(`[data-row="${focused}"]`)?.focus({ preventScroll: true });
  }

  gap(rows) {
    const line = make("tr", { class: "gap", "aria-hidden": "true" }, make("td"));
    line.firstChild.style.height = `${rows * ROW_PX}px`;
    return line;
  }

  row(index) {
    const item = this.rows[index];
    const line = make("tr", { "aria-rowindex": index + 2, "aria-selected": String(item === this.chosen) });
    this.columns.forEach((column, place) => {
      let content = column.cell(item);
      const title = typeof content === "string" ? content : null;
      if (place === 0) content = make("button", { type: "button", "data-row": index, title, onclick: () => this.open(item) }, make("bdi", { dir: "ltr" }, content));
      line.append(make("td", { class: this.classOf(column), title: place ? title : null }, content));
    });
    return line;
  }

  open(item) {
    this.chosen = item;
    this.drawn = null;
    this.draw();
    this.choose(item);
  }

  move(event) {
    const at = Number(event.target.dataset?.row ?? NaN);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[event.key];
    if (Number.isNaN(at) || !step) return;
    event.preventDefault();
    const to = Math.max(0, Math.min(this.rows.length - 1, at + step));
    const top = to * ROW_PX, room = this.scroll.clientHeight - 2 * ROW_PX;
    if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
    if (top > this.scroll.scrollTop + room) this.scroll.scrollTop = top - room;
    this.draw();
    this.body.querySelector(`[data-row="${to}"]`)?.focus({ preventScroll: true });
  }
}

// Rows whose texts hold every word. Case does not matter.
function wordsIn(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (candidate) => words.every((word) => candidate.includes(word));
}
