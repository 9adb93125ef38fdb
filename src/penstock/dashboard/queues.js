// All queues, the deepest first.

import { Table, count, h, queueAddress, rate } from "./dom.js";
import { paged, place } from "./lists.js";

const COLUMNS = "name,vhost,messages,messages_ready,messages_unacknowledged,consumers,message_stats,penstock.delayed,penstock.paused,penstock.proxied_transfer,exclusive,durable";

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
      table.mark({ by, reverse: wish.reverse });
      list.turn(1);
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
  const list = paged("queues", "queue", table, { query: { columns: COLUMNS }, wish, search: true });
  return place({ title: "Queues", boxes: [[null, list]], kinds: ["queue.created", "queue.deleted"] });
}

function state(row) {
  if (row.penstock?.paused) return h("span", { class: "badge paused" }, "paused");
  if (row.penstock?.proxied_transfer) return h("span", { class: "badge bad" }, "acts for absent owners");
  const words = [row.exclusive && "exclusive", row.durable === false && "transient"].filter(Boolean);
  return words.join(", ") || "";
}
