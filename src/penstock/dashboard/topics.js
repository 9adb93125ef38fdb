// Topics with a key, and views.

import { ask } from "./api.js";
import { Table, count, h, say, size } from "./dom.js";
import { every } from "./lists.js";

export function topics() {
  const keyed = new Table({
    caption: "Topics with a key", key: (row) => `${row.vhost}\n${row.exchange}\n${row.name}`, empty: "No topic has a key.",
    columns: [
      { title: "Topic", header: true, cell: (row) => (row.exchange ? `${row.exchange}/${row.name}` : row.name) },
      { title: "Vhost", minor: true, cell: (row) => row.vhost },
      { title: "Records", number: true, cell: (row) => count(row.records) },
      { title: "Memory of the index", number: true, cell: (row) => size(row.index_bytes) },
    ],
  });
  const made = new Table({
    caption: "Views", key: (row) => `${row.vhost}\n${row.name}`, empty: "The settings name no view.",
    columns: [
      { title: "View", header: true, cell: (row) => row.name },
      { title: "Vhost", minor: true, cell: (row) => row.vhost },
      { title: "Rows", number: true, cell: (row) => count(row.records) },
      { title: "Lag", number: true, cell: (row) => count(row.lag) },
      { title: "Begun anew", number: true, minor: true, cell: (row) => count(row.rebuilds) },
      { title: "State", cell: (row) => (row.stopped ? h("span", { class: "badge bad" }, row.error) : "runs") },
    ],
  });
  const views = h("section", { class: "box" }, h("h2", {}, "Views and conflated topics"), made.node);
  const load = (quiet) => {
    ask("topics").then((rows) => keyed.show(rows), (error) => quiet || say(error.message, true));
    ask("views").then((rows) => made.show(rows), (error) => { views.hidden = error.status === 401; });
  };
  const stop = every(load);
  return {
    title: "Topics",
    node: h("div", {}, h("h1", {}, "Topics"), h("section", { class: "box" }, h("h2", {}, "Topics with a key"), keyed.node), views),
    close: stop,
  };
}
