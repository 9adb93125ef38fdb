// Links to other sites and from them: state, what the other side does not have yet, what went over.

import { ask } from "./api.js";
import { Table, count, h, setText, size } from "./dom.js";
import { every } from "./lists.js";

const EVERY_MS = 2000;

export function links() {
  const table = new Table({
    caption: "Links", key: (row) => `${row.direction} ${row.link}`, empty: "No [[link]] leads from here, and none comes.",
    columns: [
      { title: "Site", header: true, cell: (row) => row.link },
      { title: "Direction", cell: (row) => (row.direction === "out" ? "to it" : "from it") },
      { title: "State", cell: (row) => (row.state === "up" ? "up" : h("span", { class: "badge paused" }, row.state)) },
      { title: "Since", cell: (row) => new Date(row.since / 1000).toLocaleString() },
      { title: "Confirms wait", cell: (row) => (row.direction === "out" && row.sync ? (row.downgraded ? "downgraded" : "yes") : "") },
      { title: "Owes", number: true, cell: (row) => (row.direction === "out" ? `${row.lag_seconds.toFixed(1)} s` : "") },
      { title: "Messages", number: true, cell: (row) => count(row.messages) },
      { title: "Bytes", number: true, cell: (row) => size(row.bytes) },
      { title: "Why", minor: true, cell: (row) => [row.why, row.awaited && "queues here wait for what it has to tell"].filter(Boolean).join("; ") },
    ],
  });
  const told = h("p", { class: "note", role: "status" });
  const load = async () => {
    try {
      const all = await ask("links");
      table.show(all);
      setText(told, all.length ? "What a site that is away does not have yet waits in the log." : "");
      table.node.hidden = false;
    } catch (error) {
      setText(told, error.message);
      table.node.hidden = true;
    }
  };
  const stop = every(load, EVERY_MS);
  return {
    title: "Links",
    node: h("div", {}, h("h1", {}, "Links to other sites"), h("section", { class: "box" }, told, table.node)),
    close: stop,
  };
}
