// The server as a whole: how much waits, how fast it goes, what it uses, what has happened.

import { ask } from "./api.js";
import { Chart, History } from "./chart.js";
import { Table, clock, count, duration, h, plural, queueAddress, rate, say, setText, shown, size } from "./dom.js";

const EVENTS_KEPT = 60;

const history = new History(); // kept while the tab is open, so that coming back shows the last minutes
const happened = [];

export function overview() {
  const tile = {};
  const tiles = (pairs) => h("dl", { class: "tiles" }, pairs.map(([name, title, small]) => {
    tile[name] = h("dd", { class: small ? "small" : null }, "–");
    return h("div", { class: "tile" }, h("dt", {}, title), tile[name]);
  }));
  const depth = new Chart({ title: "Messages in all queues", unit: count, series: [
    { name: "ready", of: 0, class: "a" }, { name: "leased", of: 1, class: "b" }, { name: "delayed", of: 2, class: "c" },
  ] });
  const speed = new Chart({ title: "Messages a second", unit: rate, series: [
    { name: "into queues", of: 3, class: "a" }, { name: "delivered", of: 4, class: "b" }, { name: "acknowledged", of: 5, class: "c" },
  ] });
  const meter = h("meter", { min: 0, max: 1, value: 0, high: 0.95, "aria-label": "share of server.memory in use" });
  const deepest = new Table({
    caption: "Deepest queues", key: (row) => `${row.vhost}\n${row.name}`, empty: "No queue has messages.",
    columns: [
      { title: "Queue", header: true, cell: (row) => h("a", { href: queueAddress(row.vhost, row.name) }, row.name) },
      { title: "Vhost", minor: true, cell: (row) => row.vhost },
      { title: "Ready", number: true, cell: (row) => count(row.messages_ready) },
      { title: "Leased", number: true, cell: (row) => count(row.messages_unacknowledged) },
      { title: "In", number: true, minor: true, cell: (row) => rate(row.publish_rate) },
      { title: "Out", number: true, minor: true, cell: (row) => rate(row.deliver_rate) },
    ],
  });
  const settings = new Table({
    caption: "Settings", key: (row) => row[0], empty: "",
    columns: [
      { title: "Setting", header: true, cell: ([name]) => name },
      { title: "Value", long: true, cell: ([, one]) => shown(one.value) },
      { title: "From", cell: ([, one]) => one.from },
    ],
  });
  const events = h("ol", { class: "events" }, happened.map(line));
  const nothing = h("p", { class: "note", hidden: happened.length > 0 }, "Nothing since this tab was opened.");
  const version = h("span", { class: "note" });
  const inForce = h("details", { class: "box" }, h("summary", {}, "Settings in force"), settings.node);
  const node = h("div", {},
    h("h1", {}, "Overview ", version),
    tiles([["ready", "Ready"], ["leased", "Leased"], ["delayed", "Delayed"], ["queues", "Queues"], ["consumers", "Consumers"], ["connections", "Connections"], ["in", "Into queues"], ["out", "Delivered"], ["acked", "Acknowledged"]]),
    h("div", { class: "pair" }, depth.node, speed.node),
    tiles([["status", "Status", true], ["sync", "Sync", true], ["memory", "Memory budget", true], ["resident", "Resident memory", true], ["disk", "Free disk", true], ["log", "Log", true], ["lsn", "Durable LSN", true]]),
    h("div", { class: "pair" },
      h("section", { class: "box" }, h("h2", {}, "Deepest queues"), deepest.node),
      h("section", { class: "box" }, h("h2", {}, "What has happened"), nothing, events)),
    inForce);
  tile.memory.after(meter);

  ask("overview").then((all) => {
    setText(version, `${all.node} · ${all.product_version}`);
    inForce.hidden = !all.penstock; // they are for users with the tag monitoring
    if (inForce.hidden) return;
    const given = all.penstock.settings;
    setText(tile.sync, `${shown(given["server.sync"]?.value)} (${given["server.sync"]?.from})`);
    settings.show(Object.entries(given).sort((a, b) => (a[1].from === "default") - (b[1].from === "default")));
  }, (error) => say(error.message, true));

  depth.draw(history);
  speed.draw(history);

  return {
    node,
    title: "Overview",
    query: { top: 10 },
    event(kind, data) {
      if (kind !== "stats") return add(kind, data);
      const all = data.totals;
      const texts = {
        ready: count(all.messages_ready), leased: count(all.messages_unacknowledged), delayed: count(all.messages_delayed),
        queues: count(all.queues), consumers: count(all.consumers), connections: count(all.connections),
        in: rate(all.publish_rate), out: rate(all.deliver_rate), acked: rate(all.ack_rate), status: data.status,
        memory: `${size(data.memory.used)} of ${size(data.memory.limit)}`, resident: size(data.memory.resident),
        disk: size(data.disk_free), log: `${size(data.log.bytes)} in ${plural(data.log.segments, "segment")}`, lsn: String(data.log.durable_lsn),
      };
      for (const [name, text] of Object.entries(texts)) setText(tile[name], text);
      meter.value = data.memory.used / data.memory.limit;
      history.add(data.time, [all.messages_ready, all.messages_unacknowledged, all.messages_delayed, all.publish_rate, all.deliver_rate, all.ack_rate]);
      depth.draw(history);
      speed.draw(history);
      deepest.show(data.queues);
      return undefined;
    },
  };

  function add(kind, data) {
    if (kind === "hello") return;
    nothing.hidden = true;
    happened.unshift({ kind, data });
    happened.length = Math.min(happened.length, EVENTS_KEPT);
    events.prepend(line(happened[0]));
    while (events.childElementCount > EVENTS_KEPT) events.lastElementChild.remove();
  }
}

// {"maxlen": 10} reads as "maxlen 10".
function pairs(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return shown(value);
  return Object.entries(value).map(([name, one]) => `${name} ${shown(one)}`).join(" ");
}

function line({ kind, data }) {
  const { time, seconds, ...rest } = data;
  const words = Object.entries(rest).filter(([, value]) => value !== "" && value !== null)
    .map(([name, value]) => `${name} ${pairs(value)}`);
  if (seconds !== undefined) words.push(`in ${duration(seconds)}`);
  return h("li", {}, time === undefined ? null : h("time", { datetime: new Date(time * 1000).toISOString() }, clock(time)),
    h("b", {}, kind), " ", words.join(", "));
}
