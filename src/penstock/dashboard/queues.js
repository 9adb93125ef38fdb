// All queues: the server sorts, filters and pages, so that ten thousand of them cost as much as fifty.

import { ask } from "./api.js";
import { Table, count, h, queueAddress, rate, setText } from "./dom.js";

const EVERY_MS = 5000;
const SIZES = [25, 50, 100, 250];

const wish = { page: 1, size: 50, name: "", regex: false, sort: "messages", reverse: true }; // kept while the tab is open

export function queues() {
  const table = new Table({
    caption: "Queues",
    key: (row) => `${row.vhost}\n${row.name}`,
    empty: "No queue matches.",
    sort: { by: wish.sort, reverse: wish.reverse },
    onSort(by) {
      wish.reverse = wish.sort === by ? !wish.reverse : by !== "name" && by !== "vhost";
      wish.sort = by;
      wish.page = 1;
      table.mark({ by, reverse: wish.reverse });
      load();
    },
    columns: [
      { title: "Queue", sort: "name", header: true, cell: (row) => h("a", { href: queueAddress(row.vhost, row.name) }, row.name) },
      { title: "Vhost", sort: "vhost", minor: true, cell: (row) => row.vhost },
      { title: "State", minor: true, cell: (row) => state(row) },
      { title: "Ready", sort: "messages_ready", number: true, cell: (row) => count(row.messages_ready) },
      { title: "Leased", sort: "messages_unacknowledged", number: true, cell: (row) => count(row.messages_unacknowledged) },
      { title: "Delayed", sort: "penstock.delayed", number: true, minor: true, cell: (row) => count(row.penstock.delayed) },
      { title: "Total", sort: "messages", number: true, cell: (row) => count(row.messages) },
      { title: "In", sort: "message_stats.publish_details.rate", number: true, minor: true, cell: (row) => rate(row.message_stats.publish_details?.rate) },
      { title: "Out", sort: "message_stats.deliver_get_details.rate", number: true, minor: true, cell: (row) => rate(row.message_stats.deliver_get_details?.rate) },
      { title: "Consumers", sort: "consumers", number: true, minor: true, cell: (row) => count(row.consumers) },
    ],
  });
  const found = h("span", { role: "status" });
  const back = h("button", { type: "button", onclick: () => turn(-1) }, "← Previous");
  const on = h("button", { type: "button", onclick: () => turn(1) }, "Next →");
  const name = h("input", { type: "search", value: wish.name, placeholder: "part of a name", oninput: () => soon() });
  const regex = h("input", { type: "checkbox", checked: wish.regex, onchange: () => soon() });
  const sizes = h("select", { onchange: () => { wish.size = Number(sizes.value); wish.page = 1; load(); } },
    SIZES.map((n) => h("option", { value: n, selected: n === wish.size }, n)));
  const problem = h("p", { class: "failed", role: "alert", hidden: true });

  let typing = null;
  let asking = null;
  const timer = setInterval(() => { if (!document.hidden) load(true); }, EVERY_MS);

  function soon() {
    clearTimeout(typing);
    typing = setTimeout(() => {
      wish.name = name.value;
      wish.regex = regex.checked;
      wish.page = 1;
      load();
    }, 250);
  }

  function turn(by) {
    wish.page += by;
    load();
  }

  async function load(quiet = false) {
    if (quiet && asking) return;
    asking?.abort();
    const mine = asking = new AbortController();
    const query = {
      page: wish.page, page_size: wish.size, sort: wish.sort, sort_reverse: wish.reverse, name: wish.name,
      use_regex: wish.regex && wish.name ? "true" : "",
      columns: "name,vhost,messages,messages_ready,messages_unacknowledged,consumers,message_stats,penstock.delayed,penstock.paused,exclusive,durable",
    };
    try {
      const page = await ask("queues", { query, signal: mine.signal });
      problem.hidden = true;
      table.show(page.items);
      setText(found, `${count(page.filtered_count)} of ${count(page.total_count)} queues, page ${page.page} of ${page.page_count}`);
      back.disabled = page.page <= 1;
      on.disabled = page.page >= page.page_count;
    } catch (error) {
      if (error.name === "AbortError") return;
      if (wish.page > 1 && error.status === 400) {
        wish.page = 1;
        load();
        return;
      }
      if (quiet) return;
      setText(problem, error.message);
      problem.hidden = false;
    } finally {
      if (asking === mine) asking = null;
    }
  }

  load();
  return {
    title: "Queues",
    node: h("div", {}, h("h1", {}, "Queues"),
      h("section", { class: "box" },
        h("form", { class: "line", onsubmit: (event) => event.preventDefault() },
          h("label", { class: "grow" }, "Filter", name),
          h("label", { class: "row" }, regex, "regular expression"),
          h("label", {}, "Rows", sizes)),
        problem, table.node, h("p", { class: "pages" }, back, found, on))),
    event(kind) {
      if (kind === "queue.created" || kind === "queue.deleted") {
        clearTimeout(typing);
        typing = setTimeout(() => load(true), 400);
      }
    },
    close() {
      clearInterval(timer);
      clearTimeout(typing);
      asking?.abort();
    },
  };
}

export function state(row) {
  if (row.penstock?.paused) return h("span", { class: "badge paused" }, "paused");
  if (row.penstock?.proxied_transfer) return h("span", { class: "badge bad" }, "acts for absent owners");
  const words = [row.exclusive && "exclusive", row.durable === false && "transient"].filter(Boolean);
  return words.join(", ") || "";
}

