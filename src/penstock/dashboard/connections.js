// Connections over AMQP, and the consumers of every door: those over Flight have no connection of their own.

import { ask } from "./api.js";
import { Table, confirmed, count, h, moment, queueAddress } from "./dom.js";
import { paged, place } from "./lists.js";

export function connections() {
  const open = new Table({
    caption: "Connections", key: (row) => row.name, empty: "Nobody is connected over AMQP.",
    columns: [
      { title: "Connection", header: true, cell: (row) => row.name },
      { title: "User", cell: (row) => row.user },
      { title: "Vhost", minor: true, cell: (row) => row.vhost },
      { title: "State", cell: (row) => (row.state === "running" ? "running" : h("span", { class: "badge paused" }, row.state)) },
      { title: "Channels", number: true, minor: true, cell: (row) => count(row.channels) },
      { title: "Client", minor: true, long: true, cell: (row) => [row.client_properties?.product, row.client_properties?.version].filter(Boolean).join(" ") },
      { title: "Since", minor: true, cell: (row) => moment(row.connected_at / 1000) },
      { title: "", button: "Close…", press: async (row) => { if (await closing(row.name)) lists.forEach((one) => one.load()); } },
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
  const lists = [paged("connections", "connection", open), paged("consumers", "consumer", consumers)];
  return place({ title: "Connections", boxes: [[null, lists[0]], ["Consumers", lists[1]]], kinds: ["connection.", "consumer."] });
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
