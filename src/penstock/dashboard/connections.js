// Connections over AMQP, and the consumers of every door: those over Flight have no connection of their own.

import { ask } from "./api.js";
import { Table, confirmed, count, h, moment, plural, queueAddress, say, setText } from "./dom.js";

const EVERY_MS = 5000;
const PAGE = 100;

export function connections() {
  const table = new Table({
    caption: "Connections", key: (row) => row.name, empty: "Nobody is connected over AMQP.",
    columns: [
      { title: "Connection", header: true, cell: (row) => row.name },
      { title: "User", cell: (row) => row.user },
      { title: "Vhost", minor: true, cell: (row) => row.vhost },
      { title: "State", cell: (row) => (row.state === "running" ? "running" : h("span", { class: "badge paused" }, row.state)) },
      { title: "Channels", number: true, minor: true, cell: (row) => count(row.channels) },
      { title: "Client", minor: true, long: true, cell: (row) => [row.client_properties?.product, row.client_properties?.version].filter(Boolean).join(" ") },
      { title: "Since", minor: true, cell: (row) => moment(row.connected_at / 1000) },
      { title: "", cell: (row) => h("button", { type: "button", "data-name": row.name }, "Close…") },
    ],
  });
  const consumers = new Table({
    caption: "Consumers", key: (row) => `${row.channel_details.name}\n${row.queue.vhost}\n${row.queue.name}\n${row.consumer_tag}\n${row.penstock.client ?? ""}`, empty: "Nobody consumes.",
    columns: [
      { title: "Queue", header: true, cell: (row) => h("a", { href: queueAddress(row.queue.vhost, row.queue.name) }, row.queue.name) },
      { title: "Vhost", minor: true, cell: (row) => row.queue.vhost },
      { title: "User", cell: (row) => row.channel_details.user },
      { title: "Connection", long: true, minor: true, cell: (row) => row.channel_details.name },
      { title: "Unsettled", number: true, cell: (row) => count(row.penstock.unacknowledged) },
      { title: "Backlog", number: true, minor: true, cell: (row) => (row.prefetch_count ? count(row.prefetch_count) : "no limit") },
      { title: "State", cell: (row) => row.penstock.state ?? row.activity_status },
    ],
  });
  const lists = [paged("connections", "connection", table), paged("consumers", "consumer", consumers)];
  const load = () => lists.forEach((one) => one.load());
  let later = null;
  table.node.addEventListener("click", async (event) => {
    const name = event.target.dataset?.name;
    if (name && await closing(name)) load();
  });
  load();
  const timer = setInterval(() => { if (!document.hidden) load(); }, EVERY_MS);
  return {
    title: "Connections",
    node: h("div", {}, h("h1", {}, "Connections"),
      h("section", { class: "box" }, table.node, lists[0].node),
      h("section", { class: "box" }, h("h2", {}, "Consumers"), consumers.node, lists[1].node)),
    event(kind) {
      if (kind.startsWith("connection.") || kind.startsWith("consumer.")) {
        clearTimeout(later);
        later = setTimeout(load, 400);
      }
    },
    close() {
      clearInterval(timer);
      clearTimeout(later);
    },
  };
}

// Shows a page of what a path lists in a table, with buttons for the others.
function paged(path, noun, table) {
  const found = h("span", { role: "status" });
  const back = h("button", { type: "button", onclick: () => { page -= 1; load(); } }, "← Previous");
  const on = h("button", { type: "button", onclick: () => { page += 1; load(); } }, "Next →");
  let page = 1;
  let told = false;

  async function load() {
    try {
      const some = await ask(path, { query: { page, page_size: PAGE } });
      table.show(some.items);
      setText(found, `${plural(some.total_count, noun)}, page ${some.page} of ${some.page_count}`);
      back.disabled = page <= 1;
      on.disabled = page >= some.page_count;
      told = false;
    } catch (error) {
      if (page > 1) {
        page = 1;
        load();
      } else if (!told) say(error.message, true);
      told = true;
    }
  }

  return { load, node: h("p", { class: "pages" }, back, found, on) };
}

function closing(name) {
  const reason = h("input", { value: "closed by an operator" });
  return confirmed({
    title: "Close a connection", verb: "Close it", danger: true,
    text: h("p", {}, `${name} is closed; what it holds goes back to its queues.`),
    fields: h("label", {}, "What its client is told", reason),
    act: async () => {
      await ask("closeConnection", { names: { name }, headers: { "x-reason": reason.value.replace(/[^\x20-\x7e]/g, "?") } });
      return `${name} was closed.`;
    },
  });
}
