// A SELECT over queues, topics and views.

import { ask } from "./api.js";
import { count, fill, h, plural, say, setText, shown } from "./dom.js";

const SHOWN = 1000;

let kept = null; // what was written last, while the tab is open
let place = "/";

export function sql() {
  const text = h("textarea", { rows: 7, spellcheck: "false", autocapitalize: "off", "aria-label": "Statement" });
  text.value = kept ?? "";
  const vhost = h("input", { value: place, size: 12 });
  const run = h("button", { type: "submit", class: "main" }, "Run");
  const stop = h("button", { type: "button", disabled: true, onclick: () => asking?.abort() }, "Stop");
  const told = h("p", { class: "note", role: "status" });
  const problem = h("pre", { class: "failed", role: "alert", hidden: true });
  const result = h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Result" });
  const answer = h("section", { class: "box", hidden: true }, told, result);
  let asking = null;

  async function go(event) {
    event?.preventDefault();
    if (asking) return;
    asking = new AbortController();
    run.disabled = true;
    stop.disabled = false;
    problem.hidden = true;
    told.textContent = "Running …";
    answer.hidden = false;
    fill(result); // what another statement gave does not stand below this one
    const began = performance.now();
    try {
      const found = await ask("query", { body: { sql: text.value, vhost: vhost.value }, signal: asking.signal });
      const cut = found.row_count > SHOWN ? `, the first ${count(SHOWN)} of them shown` : "";
      told.textContent = `${plural(found.row_count, "row")} in ${count(performance.now() - began)} ms${cut}`;
      show(found);
    } catch (error) {
      answer.hidden = true;
      setText(problem, error.name === "AbortError" ? "Stopped." : error.message);
      problem.hidden = false;
    } finally {
      asking = null;
      run.disabled = false;
      stop.disabled = true;
    }
  }

  function show({ columns, rows }) {
    const numbers = columns.map((one) => /^(u?int|float|double|decimal)/.test(one.type));
    fill(result, h("table", {}, h("caption", { class: "unseen" }, "Result"),
      h("thead", {}, h("tr", {}, columns.map((one, i) => h("th", { scope: "col", title: one.type, class: numbers[i] ? "number" : null }, one.name)))),
      h("tbody", {}, rows.slice(0, SHOWN).map((row) => h("tr", {}, row.map((value, i) => h("td", { class: numbers[i] ? "number" : "long" }, value === null ? h("span", { class: "note" }, "NULL") : shown(value))))))));
  }

  // The first statement is one that works here: of the deepest queue.
  async function begin() {
    let [name, where] = ["a-queue", place];
    try {
      const [deepest] = (await ask("queues", { query: { page: 1, page_size: 1, sort: "messages", sort_reverse: true } })).items;
      if (deepest) [name, where] = [deepest.name, deepest.vhost];
    } catch (error) {
      if (![401, 403].includes(error.status)) say(error.message, true); // who may not list queues has the example
    }
    if (text.value || kept !== null) return;
    text.value = `SELECT topic, count(*) AS messages\nFROM "${name.replaceAll('"', '""')}"\nGROUP BY topic\nORDER BY messages DESC\nLIMIT 100`;
    vhost.value = where;
  }

  if (kept === null) begin();
  text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) go(); });
  return {
    title: "SQL",
    query: { interval: "10s" },
    node: h("div", {}, h("h1", {}, "SQL"),
      h("form", { class: "box", onsubmit: go }, text,
        h("div", { class: "buttons" }, run, stop, h("label", { class: "row" }, "Vhost", vhost), h("span", { class: "note" }, "Ctrl+Enter runs it. Each queue, topic and view is a table; put names in double quotes."))),
      problem, answer),
    close() {
      kept = text.value || null;
      place = vhost.value;
      asking?.abort();
    },
  };
}
