// Elements, tables and numbers.  Whatever comes from the server becomes text nodes and attributes, never markup.

// An element.  Attributes that are functions are listeners; null, undefined and false are left out.
export function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, String(value));
  }
  append(node, children);
  return node;
}

export function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : legible(child));
  }
}

// A text with a sign in place of each character that would have the browser write others in another order.
export function legible(text) {
  return String(text).replace(/[\u202a-\u202e\u2066-\u2069]/g, (one) => `⟨U+${one.charCodeAt(0).toString(16).toUpperCase()}⟩`);
}

export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

// Changes the text only where it is another, so that a selection stays.
export function setText(node, text) {
  const shown = legible(text);
  if (node.textContent !== shown) node.textContent = shown;
}

// -- numbers

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n) => (n === undefined || n === null ? "–" : whole.format(n));
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
export const rate = (n) => (n === undefined || n === null ? "–" : `${n < 100 ? short.format(n) : whole.format(n)}/s`);
export const brief = (n) => compact.format(n);

export function size(bytes) {
  if (bytes === undefined || bytes === null) return "–";
  let amount = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (amount < 1024) return `${unit === "B" ? amount : short.format(amount)} ${unit}`;
    amount /= 1024;
  }
  return `${short.format(amount)} TiB`;
}

export function duration(seconds) {
  if (seconds === undefined || seconds === null) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${short.format(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

const clockTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const fullTime = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export const clock = (seconds) => clockTime.format(new Date(seconds * 1000));
export const moment = (seconds) => fullTime.format(new Date(seconds * 1000));

// Any value as text: JSON for what is not text already.
export function shown(value) {
  if (value === null || value === undefined) return "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// The object that a user wrote as JSON; {} for nothing.
export function object(what, text) {
  if (!text.trim()) return {};
  let value = null;
  try {
    value = JSON.parse(text);
  } catch {
    // told below
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error(`${what}: no JSON object: ${text.trim().slice(0, 80)}`);
  return value;
}

// -- places

const address = (kind) => (vhost, name) => `#/${kind}/${encodeURIComponent(vhost)}/${encodeURIComponent(name)}`;
export const queueAddress = address("queue");
export const exchangeAddress = address("exchange");

// -- tables

// A table whose rows are kept by key: a refresh changes the texts that differ, so focus and selection stay.
// columns: [{title, cell: row -> text or node, number, minor, sort}]; minor ones are left out of narrow windows.  One with
// {button, press} has a button in each row that says so, and `press` is given the item.
export class Table {
  constructor({ caption, columns, key, empty, sort, onSort }) {
    this.columns = columns;
    this.key = key;
    this.empty = empty;
    this.rows = new Map();
    this.onSort = onSort;
    this.heads = columns.map((column) => this.head(column));
    this.body = h("tbody", { onclick: (event) => this.press(event.target) });
    this.none = h("p", { class: "empty", hidden: true }, empty);
    this.node = h("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption },
      h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, this.heads)), this.body),
      this.none);
    if (sort) this.mark(sort);
  }

  head(column) {
    const marks = { scope: "col", class: classes(column) };
    if (!column.sort) return h("th", marks, column.title);
    return h("th", marks, h("button", { type: "button", class: "plain", onclick: () => this.onSort(column.sort) }, column.title));
  }

  press(target) {
    const cell = target.closest("td");
    if (target.tagName === "BUTTON") this.columns[cell.cellIndex].press?.(this.items.get(cell.parentNode));
  }

  mark({ by, reverse }) {
    this.columns.forEach((column, i) => {
      if (column.sort) this.heads[i].setAttribute("aria-sort", column.sort === by ? (reverse ? "descending" : "ascending") : "none");
    });
  }

  show(items) {
    const before = this.rows;
    this.rows = new Map();
    this.items = new Map();
    let place = this.body.firstElementChild;
    for (const item of items) {
      const key = this.key(item);
      if (this.rows.has(key)) continue;
      const row = before.get(key) ?? h("tr", {}, this.columns.map((column) => h(column.header ? "th" : "td", { class: classes(column), scope: column.header ? "row" : null })));
      this.rows.set(key, row);
      this.items.set(row, item);
      this.columns.forEach((column, i) => put(row.cells[i], (column.cell ?? pressed)(item, column)));
      if (row === place) place = place.nextElementSibling;
      else this.body.insertBefore(row, place);
    }
    for (const [key, row] of before) if (!this.rows.has(key)) row.remove();
    this.none.hidden = items.length > 0;
  }
}

function classes(column) {
  return [column.press && "press", column.number && "number", column.minor && "minor", column.long && "long"].filter(Boolean).join(" ") || null;
}

const pressed = (item, { button, shown: may }) => (may && !may(item) ? "" : h("button", { type: "button" }, button));

function put(cell, value) {
  if (!(value instanceof Node)) setText(cell, value === null || value === undefined ? "" : String(value));
  else if (cell.childNodes.length !== 1 || !cell.firstChild.isEqualNode(value)) cell.replaceChildren(value);
}

// -- words to the user

export function say(text, failed = false) {
  const box = document.getElementById("say");
  fill(box, h("p", { class: failed ? "failed" : "done" }, text,
    h("button", { type: "button", class: "plain", "aria-label": "Dismiss", onclick: () => fill(box) }, "✕")));
}

// What failed is told where it failed: on another page it is over.
export function unsay() {
  if (document.querySelector("#say .failed")) fill(document.getElementById("say"));
}

// Asks in a dialog.  `fields` are elements; `act` does it and gives a sentence, or throws; true once it was done.
export function confirmed({ title, text, fields = [], verb, danger = false, act }) {
  return new Promise((resolve) => {
    const problem = h("p", { class: "failed", role: "alert", hidden: true });
    const go = h("button", { type: "submit", class: danger ? "danger" : "main" }, verb);
    const box = h("dialog", { "aria-labelledby": "dialog-title", onclose: () => { box.remove(); resolve(box.returnValue === "done"); } },
      h("form", {
        onsubmit: async (event) => {
          event.preventDefault();
          go.disabled = true;
          problem.hidden = true;
          try {
            say(await act());
            box.close("done");
          } catch (error) {
            fill(problem, error.message).hidden = false;
            go.disabled = false;
          }
        },
      },
      h("h2", { id: "dialog-title" }, title), text, fields, problem,
      h("p", { class: "buttons" }, go, h("button", { type: "button", onclick: () => box.close() }, "Cancel"))));
    document.body.append(box);
    box.showModal();
  });
}
