// One queue: what waits and since when, who takes it, why nothing goes, what its settings are; looking and acting.

import { ask } from "./api.js";
import { Chart, History } from "./chart.js";
import { Table, confirmed, count, duration, fill, h, moment, plural, rate, say, setText, shown, size } from "./dom.js";
import { bindings } from "./exchanges.js";
import { every } from "./lists.js";

const PREVIEW = 500; // bytes of a body
const HISTORIES = 20;

const histories = new Map(); // of the queues looked at last, so that coming back shows the last minutes

function historyOf(key) {
  const found = histories.get(key) ?? new History();
  histories.delete(key);
  histories.set(key, found);
  if (histories.size > HISTORIES) histories.delete(histories.keys().next().value);
  return found;
}

function shared(more) {
  const said = [["transferred_in", "came from them"], ["transferred_out", "went to them"], ["double", "two sites took"]]
    .filter(([key]) => more[key]).map(([key, what]) => `${count(more[key])} ${what}`);
  if (more.foreign) said.unshift(`${count(more.foreign)} wait here that are theirs`);
  if (more.proxied_transfer) said.push("this site acts for owners that are away");
  return said.length ? `Shared with other sites: ${said.join(", ")}.` : "";
}

export function queue(vhost, name) {
  const names = { vhost, name };
  const history = historyOf(`${vhost}\n${name}`);
  const tile = {};
  const tiles = h("dl", { class: "tiles" }, [
    ["ready", "Ready"], ["leased", "Leased"], ["delayed", "Delayed"], ["consumers", "Consumers"], ["in", "In"], ["out", "Delivered"],
    ["acked", "Acknowledged"], ["behind", "Oldest message"], ["bytes", "Bytes"],
  ].map(([key, title]) => {
    tile[key] = h("dd", {}, "–");
    return h("div", { class: "tile" }, h("dt", {}, title), tile[key]);
  }));
  const depth = new Chart({ title: "Messages", unit: count, series: [
    { name: "ready", of: 0, class: "a" }, { name: "leased", of: 1, class: "b" }, { name: "delayed", of: 2, class: "c" },
  ] });
  const speed = new Chart({ title: "Messages a second", unit: rate, series: [
    { name: "in", of: 3, class: "a" }, { name: "delivered", of: 4, class: "b" }, { name: "acknowledged", of: 5, class: "c" },
  ] });
  const badge = h("span", { class: "badge" });
  const reasons = h("ul", { class: "reasons" });
  const consumers = new Table({
    caption: "Consumers", key: (row) => `${row.channel_details.name}\n${row.consumer_tag}\n${row.penstock.client ?? ""}`, empty: "Nobody consumes.",
    columns: [
      { title: "Tag", header: true, cell: (row) => row.consumer_tag },
      { title: "Connection", long: true, minor: true, cell: (row) => row.channel_details.name },
      { title: "User", cell: (row) => row.channel_details.user },
      { title: "Unsettled", number: true, cell: (row) => count(row.penstock.unacknowledged) },
      { title: "Backlog", number: true, cell: (row) => (row.prefetch_count ? count(row.prefetch_count) : "no limit") },
      { title: "State", minor: true, cell: (row) => row.penstock.state ?? row.activity_status },
    ],
  });
  const settings = new Table({
    caption: "Settings", key: (row) => row[0], empty: "Every setting is the default.",
    columns: [
      { title: "Setting", header: true, cell: ([key]) => key },
      { title: "Value", long: true, cell: ([, one]) => shown(one.value) },
      { title: "From", cell: ([, one]) => one.from },
    ],
  });
  const limits = h("p", { class: "note" });
  const sites = h("p", { class: "note" });
  const bound = bindings("queueBindings", names);
  const peeked = peek(names);
  const pause = h("button", { type: "button", onclick: () => act(paused ? resuming : pausing) }, "Pause");
  let paused = false;

  async function load(quiet = false) {
    bound.load(quiet);
    try {
      const [all, why] = await Promise.all([ask("queue", { names }), ask("explain", { names })]);
      const more = all.penstock;
      paused = more.paused;
      setText(pause, paused ? "Resume" : "Pause");
      setText(badge, paused ? (more.paused_until ? `paused until ${moment(more.paused_until)}` : "paused") : "running");
      badge.className = paused ? "badge paused" : "badge";
      setText(tile.ready, count(all.messages_ready));
      setText(tile.leased, count(all.messages_unacknowledged));
      setText(tile.delayed, count(more.delayed));
      setText(tile.consumers, count(all.consumers));
      setText(tile.behind, all.messages ? duration(more.seconds_behind) : "–");
      setText(tile.bytes, size(all.message_bytes));
      fill(reasons, why.reasons.length ? why.reasons.map((one) => h("li", {}, one.text)) : h("li", {}, "Nothing keeps messages from being delivered."));
      consumers.show(all.consumer_details ?? []);
      const given = Object.entries(more.settings ?? {});
      settings.show(given);
      const lost = ["dropped", "replaced", "refused", "expired_leases", "cancelled", "redelivered", "dead_letter_refused"].filter((key) => more[key]);
      setText(sites, shared(more));
      sites.className = more.proxied_transfer || more.double ? "note bad" : "note";
      setText(limits, lost.length ? `Since the start: ${lost.map((key) => `${count(more[key])} ${key.replaceAll("_", " ")}`).join(", ")}.` : "");
    } catch (error) {
      if (error.status === 404) {
        setText(badge, "there is no such queue");
        badge.className = "badge bad";
        stop();
      } else if (!quiet) say(error.message, true);
    }
  }

  async function act(how) {
    try {
      if (await how()) load();
    } catch (error) {
      say(error.message, true);
    }
  }

  const pausing = () => {
    const time = h("input", { placeholder: "for good", pattern: "\\s*[0-9.]+\\s*(us|ms|s|m|h|d)\\s*", title: "a number with us, ms, s, m, h or d" });
    return confirmed({
      title: `Pause ${name}`, verb: "Pause", text: h("p", {}, "Nothing is delivered until it is resumed. Messages still come in."),
      fields: h("label", {}, "For how long (5m, 2h)", time),
      act: async () => {
        await ask("pause", { names, body: time.value.trim() ? { for: time.value.trim() } : {} });
        return `${name} is paused.`;
      },
    });
  };
  const resuming = () => confirmed({
    title: `Resume ${name}`, verb: "Resume", text: h("p", {}, "What waits is delivered again."),
    act: async () => {
      await ask("resume", { names, body: {} });
      return `${name} goes on.`;
    },
  });
  const purging = async () => {
    const { messages_ready: ready } = await ask("queue", { names }); // as it is now, not as it was shown last
    return confirmed({
      title: `Purge ${name}`, verb: `Remove ${plural(ready, "message")}`, danger: true,
      text: h("p", {}, `${plural(ready, "message")} ${ready === 1 ? "is" : "are"} ready and removed for good. What is leased or delayed stays.`),
      act: async () => {
        await ask("purge", { names });
        return `${name} was purged.`;
      },
    });
  };
  const redriving = () => moving(names, "redrive");
  const movingOn = () => moving(names, "move");

  const stop = every(load);
  depth.draw(history);
  speed.draw(history);

  return {
    title: name,
    query: { queue: name, vhost },
    node: h("div", {},
      h("h1", {}, name, " ", badge, vhost === "/" ? null : h("span", { class: "note" }, ` in ${vhost}`)),
      h("p", { class: "buttons" }, pause,
        h("button", { type: "button", onclick: () => act(redriving) }, "Redrive…"),
        h("button", { type: "button", onclick: () => act(movingOn) }, "Move…"),
        h("button", { type: "button", onclick: () => act(purging) }, "Purge…")),
      h("section", { class: "box", "aria-label": "Why messages are or are not delivered" }, h("h2", {}, "Is anything in the way?"), reasons, limits, sites),
      tiles,
      h("div", { class: "pair" }, depth.node, speed.node),
      peeked,
      h("div", { class: "pair" },
        h("section", { class: "box" }, h("h2", {}, "Consumers"), consumers.node),
        h("section", { class: "box" }, h("h2", {}, "Bindings"), bound.node),
        h("section", { class: "box" }, h("h2", {}, "Settings that are not the default"), settings.node))),
    event(kind, data) {
      if (kind === "stats") {
        const one = data.queues.find((row) => row.name === name && row.vhost === vhost);
        if (!one) return;
        setText(tile.ready, count(one.messages_ready));
        setText(tile.leased, count(one.messages_unacknowledged));
        setText(tile.delayed, count(one.messages_delayed));
        setText(tile.consumers, count(one.consumers));
        setText(tile.in, rate(one.publish_rate));
        setText(tile.out, rate(one.deliver_rate));
        setText(tile.acked, rate(one.ack_rate));
        history.add(data.time, [one.messages_ready, one.messages_unacknowledged, one.messages_delayed, one.publish_rate, one.deliver_rate, one.ack_rate]);
        depth.draw(history);
        speed.draw(history);
      } else if (data.queue === name && data.vhost === vhost) load(true);
    },
    close() {
      stop();
      bound.close();
    },
  };
}

// -- looking at messages, which leases none

function peek(names) {
  const filter = h("input", { placeholder: "/total > 5 AND /region = 'north'", spellcheck: "false", autocapitalize: "off" });
  const many = h("select", {}, [10, 25, 50, 100].map((n) => h("option", { value: n }, n)));
  const problem = h("pre", { class: "failed", role: "alert", hidden: true });
  const told = h("p", { class: "note", role: "status" });
  const table = new Table({
    caption: "Messages", key: (row) => row.bookmark, empty: "",
    columns: [
      { title: "Bookmark", header: true, minor: true, cell: (row) => h("code", { class: "whole" }, row.bookmark) },
      { title: "Published", cell: (row) => moment(row.time) },
      { title: "Topic", minor: true, long: true, cell: (row) => (row.exchange ? `${row.exchange}/${row.routing_key}` : row.routing_key) },
      { title: "Size", number: true, cell: (row) => size(row.payload_bytes) },
      { title: "Body", long: true, cell: (row) => body(row) },
    ],
  });
  async function look(event) {
    event?.preventDefault();
    problem.hidden = true;
    try {
      const query = { count: many.value, filter: filter.value.trim(), truncate: PREVIEW };
      const [rows, answer] = await ask("peek", { names, query, whole: true });
      table.show(rows);
      const looked = Number(answer.headers.get("x-looked-at"));
      setText(told, query.filter ? `${count(rows.length)} found in the first ${count(looked)} that are ready.` : rows.length ? "" : "Nothing is ready.");
    } catch (error) {
      setText(problem, error.message);
      problem.hidden = false;
    }
  }
  return h("section", { class: "box" }, h("h2", {}, "Messages"),
    h("form", { class: "line", onsubmit: look },
      h("label", { class: "grow" }, "Filter expression", filter), h("label", {}, "How many", many),
      h("button", { class: "main", type: "submit" }, "Peek")),
    h("p", { class: "note" }, "Peeking leases nothing: messages stay where they are."), problem, told, table.node);
}

function body(row) {
  const cut = row.payload_bytes > PREVIEW ? " …" : "";
  const text = row.payload_encoding === "string" ? row.payload + cut : `${row.payload}${cut} (base64)`;
  const properties = JSON.stringify(row.properties, null, 2);
  return h("details", {}, h("summary", {}, h("code", { class: "preview" }, text.slice(0, 120) + (text.length > 120 ? "…" : "") || "(empty)"), row.reason ? h("p", { class: "note" }, `died: ${row.reason}`) : null),
    h("pre", {}, text), properties === "{}" ? null : h("pre", {}, properties), row.redelivered ? h("p", { class: "note" }, row.attempt ? `was delivered ${row.attempt === 1 ? "once" : `${row.attempt} times`}` : "may have been delivered before") : null);
}

// -- moving messages: counted first, in calls of some thousands

async function all(name, names, wanted, dry) {
  const sum = { moved: 0, matched: 0, targets: {}, strays: {} };
  let after;
  do {
    const done = await ask(name, { names, body: { ...wanted, dry, ...(after === undefined ? {} : { after }) } });
    sum.moved += done.moved;
    sum.matched += done.matched;
    for (const [key, n] of Object.entries(done.targets)) sum.targets[key] = (sum.targets[key] ?? 0) + n;
    for (const [key, n] of Object.entries(done.strays)) sum.strays[key] = (sum.strays[key] ?? 0) + n;
    after = done.next ?? undefined;
  } while (after !== undefined);
  return sum;
}

function told(sum) {
  const where = Object.entries(sum.targets).map(([to, n]) => `${count(n)} to ${to}`).join(", ");
  const stay = Object.entries(sum.strays).map(([why, n]) => `${count(n)} stay: ${why}`).join("; ");
  return [where || "none", stay].filter(Boolean).join(". ");
}

function moving(names, verb) {
  const redrive = verb === "redrive";
  const to = h("input", { required: !redrive });
  const filter = h("input", { placeholder: "all of them", spellcheck: "false", autocapitalize: "off" });
  const preview = h("p", { class: "note", role: "status" }, "Not counted yet.");
  const wanted = () => ({ ...(redrive ? {} : { to: to.value }), ...(filter.value.trim() ? { filter: filter.value.trim() } : {}) });
  let counted = "";
  const title = redrive ? `Redrive ${names.name}` : `Move messages of ${names.name}`;
  const forget = () => { counted = ""; setText(preview, "Not counted yet."); };
  filter.addEventListener("input", forget);
  to.addEventListener("input", forget);
  const look = async () => {
    const sum = await all(verb, names, wanted(), true);
    counted = JSON.stringify(wanted());
    const goes = Object.values(sum.targets).reduce((total, n) => total + n, 0);
    setText(preview, `${count(goes)} of ${count(sum.matched)} would go: ${told(sum)}.`);
  };
  return confirmed({
    title, verb: redrive ? "Redrive" : "Move",
    text: h("p", {}, redrive ? "Dead letters go back to where they came from." : "What waits goes to another queue."),
    fields: [
      redrive ? null : h("label", {}, "To queue", to),
      h("label", {}, "Filter expression", filter),
      h("p", { class: "buttons" }, h("button", { type: "button", onclick: () => look().catch((error) => setText(preview, error.message)) }, "Count")),
      preview,
    ],
    act: async () => {
      if (counted !== JSON.stringify(wanted())) {
        await look();
        throw new Error("Counted just now: look, and confirm again.");
      }
      const sum = await all(verb, names, wanted(), false);
      return `${plural(sum.moved, "message")} went: ${told(sum)}.`;
    },
  });
}
