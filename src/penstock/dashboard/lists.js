// Lists that the server filters, sorts and pages, so that ten thousand of a thing cost as much as fifty; and places that show some.

import { ask } from "./api.js";
import { count, h, plural, setText } from "./dom.js";

const SIZES = [25, 50, 100, 250];
const SOON_MS = 300; // what is typed, and what comes in events, is asked for together
const EVERY_MS = 5000;

// Loads now, and again and again while somebody looks, quietly then; gives what ends it.
export function every(load, ms = EVERY_MS) {
  load();
  const timer = setInterval(() => { if (!document.hidden) load(true); }, ms);
  return () => clearInterval(timer);
}

// What a path lists, in a table.  `wish` is what is asked for: {page, size, name, regex, sort, reverse}; who keeps it shows
// the same when he comes back.  `search`: with fields for it.
export function paged(path, noun, table, { names = {}, query = {}, wish = { page: 1, size: 100 }, search = false } = {}) {
  const found = h("span", { role: "status" });
  const back = h("button", { type: "button", onclick: () => turn(wish.page - 1) }, "← Previous");
  const on = h("button", { type: "button", onclick: () => turn(wish.page + 1) }, "Next →");
  const problem = h("p", { class: "failed", role: "alert", hidden: true });
  let waiting = null;
  let asking = null;

  function turn(page) {
    wish.page = page;
    load();
  }

  function soon(next = () => load(true)) {
    clearTimeout(waiting);
    waiting = setTimeout(next, SOON_MS);
  }

  async function load(quiet = false) {
    if (quiet && asking) return;
    asking?.abort();
    const mine = asking = new AbortController();
    const { page, size, name, regex, sort, reverse } = wish;
    const asked = { ...query, page, page_size: size, name, use_regex: regex && name ? "true" : "", sort, sort_reverse: sort && reverse };
    try {
      const some = await ask(path, { names, query: asked, signal: mine.signal });
      problem.hidden = true;
      table.show(some.items);
      const all = plural(some.total_count, noun);
      setText(found, `${search ? `${count(some.filtered_count)} of ` : ""}${all}, page ${some.page} of ${some.page_count}`);
      back.hidden = on.hidden = some.page_count <= 1;
      back.disabled = some.page <= 1;
      on.disabled = some.page >= some.page_count;
    } catch (error) {
      if (error.name === "AbortError") return;
      if (page > 1 && error.status === 400) turn(1);
      else if (!quiet) {
        setText(problem, error.message);
        problem.hidden = false;
      }
    } finally {
      if (asking === mine) asking = null;
    }
  }

  return {
    load,
    soon,
    turn,
    node: h("div", {}, search && searching(wish, soon, turn), problem, table.node, h("p", { class: "pages" }, back, found, on)),
    close() {
      clearTimeout(waiting);
      asking?.abort();
    },
  };
}

function searching(wish, soon, turn) {
  const change = () => soon(() => {
    wish.name = name.value;
    wish.regex = regex.checked;
    turn(1);
  });
  const name = h("input", { type: "search", value: wish.name, placeholder: "part of a name", oninput: change });
  const regex = h("input", { type: "checkbox", checked: wish.regex, onchange: change });
  const sizes = h("select", { onchange: () => { wish.size = Number(sizes.value); turn(1); } },
    SIZES.map((n) => h("option", { value: n, selected: n === wish.size }, n)));
  return h("form", { class: "line", onsubmit: (event) => event.preventDefault() },
    h("label", { class: "grow" }, "Filter", name), h("label", { class: "row" }, regex, "regular expression"), h("label", {}, "Rows", sizes));
}

// A place with a box for each list: [heading or null, list].  Events whose kinds begin with one of `kinds` have them loaded anew.
export function place({ title, heading = title, boxes, above = null, kinds = [], query }) {
  const lists = boxes.map(([, list]) => list);
  const stop = every((quiet) => lists.forEach((list) => list.load(quiet)));
  return {
    title,
    query,
    node: h("div", {}, h("h1", {}, heading), above,
      boxes.map(([text, list]) => h("section", { class: "box" }, text && h("h2", {}, text), list.node))),
    event: (kind) => { if (kinds.some((start) => kind.startsWith(start))) lists.forEach((list) => list.soon()); },
    close() {
      stop();
      lists.forEach((list) => list.close());
    },
  };
}
