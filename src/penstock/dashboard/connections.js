// Connections over AMQP.

import { ask } from "./api.js";
import { Table, confirmed, count, h, moment, plural, say, setText } from "./dom.js";

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
  table.node.addEventListener("click", async (event) => {
    const name = event.target.dataset?.name;
    if (name && await closing(name)) load();
  });
  const found = h("span", { role: "status" });
  const back = h("button", { type: "button", onclick: () => { page -= 1; load(); } }, "← Previous");
  const on = h("button", { type: "button", onclick: () => { page += 1; load(); } }, "Next →");
  let page = 1;
  let told = false;
  let later = null;

  async function load() {
    try {
      const some = await ask("connections", { query: { page, page_size: PAGE } });
      table.show(some.items);
      setText(found, `${plural(some.total_count, "connection")}, page ${some.page} of ${some.page_count}`);
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

  load();
  const timer = setInterval(() => { if (!document.hidden) load(); }, EVERY_MS);
  return {
    title: "Connections",
    node: h("div", {}, h("h1", {}, "Connections"), h("section", { class: "box" }, table.node, h("p", { class: "pages" }, back, found, on))),
    event(kind) {
      if (kind.startsWith("connection.")) {
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
