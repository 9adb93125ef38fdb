// Exchanges, and one of them: what is bound to it, and what a message that is published there would do.

import { ask } from "./api.js";
import { Table, confirmed, exchangeAddress, h, object, queueAddress, setText, shown } from "./dom.js";
import { paged, place } from "./lists.js";

const DEFAULT = "amq.default"; // how the exchange without a name is called in a path

const wish = { page: 1, size: 50, name: "", regex: false }; // kept while the tab is open

const link = (vhost, name) => h("a", { href: exchangeAddress(vhost, name || DEFAULT) }, name || "(default)");
const empty = (value) => Object.keys(value).length === 0;

export function exchanges() {
  const table = new Table({
    caption: "Exchanges", key: (row) => `${row.vhost}\n${row.name}`, empty: "No exchange matches.",
    columns: [
      { title: "Exchange", header: true, cell: (row) => link(row.vhost, row.name) },
      { title: "Vhost", minor: true, cell: (row) => row.vhost },
      { title: "Type", cell: (row) => row.type },
      { title: "Is", minor: true, cell: traits },
      { title: "Policy", minor: true, cell: (row) => row.policy },
      { title: "Arguments", long: true, minor: true, cell: (row) => (empty(row.arguments) ? "" : shown(row.arguments)) },
    ],
  });
  return place({
    title: "Exchanges", boxes: [[null, paged("exchanges", "exchange", table, { wish, search: true })]],
    kinds: ["exchange.", "policy."],
  });
}

const traits = (row) => [!row.durable && "transient", row.auto_delete && "auto-delete", row.internal && "internal"].filter(Boolean).join(", ");

export function exchange(vhost, name) {
  const names = { vhost, name };
  const about = h("p", { class: "note" });
  const out = bindings("bindingsFrom", names);
  const into = bindings("bindingsTo", names);
  const tell = (one) => setText(about, [one.type, traits(one), one.policy && `policy ${one.policy}`, empty(one.arguments) ? "" : shown(one.arguments)].filter(Boolean).join(", "));
  ask("exchange", { names }).then(tell, (error) => setText(about, error.message));
  const button = (text, act) => h("button", { type: "button", onclick: async () => { if (await act(vhost, name)) out.load(); } }, text);
  return place({
    title: name, heading: [name, vhost === "/" ? null : h("span", { class: "note" }, ` in ${vhost}`)],
    above: [about, h("p", { class: "buttons" }, button("Publish…", publishing), name !== DEFAULT && button("Bind…", binding))],
    boxes: [["What goes from here", out], ["What comes from other exchanges", into]],
    kinds: ["binding."],
  });
}

// The bindings that a path lists, of a queue or an exchange.
export function bindings(path, names) {
  const end = (row) => (row.destination_type === "queue" ? h("a", { href: queueAddress(row.vhost, row.destination) }, row.destination) : link(row.vhost, row.destination));
  const table = new Table({
    caption: "Bindings", key: (row) => [row.source, row.destination_type, row.destination, row.properties_key].join("\n"), empty: "There is no binding.",
    columns: [
      path === "bindingsFrom"
        ? { title: "To", header: true, cell: (row) => h("span", {}, `${row.destination_type} `, end(row)) }
        : { title: "From exchange", header: true, cell: (row) => link(row.vhost, row.source) },
      { title: "Routing key", long: true, cell: (row) => row.routing_key },
      { title: "Arguments", long: true, minor: true, cell: (row) => (empty(row.arguments) ? "" : shown(row.arguments)) },
      { title: "", button: "Unbind…", shown: (row) => row.source !== "", press: async (row) => { if (await unbinding(row)) list.load(); } },
    ],
  });
  const list = paged(path, "binding", table, { names });
  return list;
}

const OF = { queue: "Queue", exchange: "Exchange" };

function unbinding({ vhost, source, destination_type: kind, destination, routing_key: key, properties_key: props }) {
  return confirmed({
    title: "Remove a binding", verb: "Unbind", danger: true,
    text: h("p", {}, `What is published to ${source} with key '${key}' does not go to ${kind} ${destination} by this binding any more. What is there stays.`),
    act: async () => {
      await ask(`unbind${OF[kind]}`, { names: { vhost, source, destination, props } });
      return `${destination} is not bound to ${source} by '${key}' any more.`;
    },
  });
}

function binding(vhost, source) {
  const kind = h("select", {}, Object.keys(OF).map((one) => h("option", {}, one)));
  const destination = h("input", { required: true });
  const key = h("input", {});
  const more = h("textarea", { rows: 2, placeholder: '{"x-match": "all", "region": "north"}', spellcheck: "false" });
  return confirmed({
    title: `Bind to ${source}`, verb: "Bind", text: h("p", {}, "What is published to it from now on, and fits, goes there."),
    fields: [h("label", {}, "A", kind), h("label", {}, "Its name", destination), h("label", {}, "Routing key", key), h("label", {}, "Arguments, a JSON object", more)],
    act: async () => {
      await ask(`bind${OF[kind.value]}`, {
        names: { vhost, source, destination: destination.value }, body: { routing_key: key.value, arguments: object("arguments", more.value) },
      });
      return `${destination.value} is bound to ${source}.`;
    },
  });
}

function publishing(vhost, name) {
  const key = h("input", {});
  const payload = h("textarea", { rows: 5, spellcheck: "false" });
  const properties = h("textarea", { rows: 2, placeholder: '{"delivery_mode": 2, "headers": {"region": "north"}}', spellcheck: "false" });
  return confirmed({
    title: `Publish to ${name}`, verb: "Publish", text: h("p", {}, "One message, as a client would send it."),
    fields: [h("label", {}, "Routing key", key), h("label", {}, "Body", payload), h("label", {}, "Properties, a JSON object", properties)],
    act: async () => {
      const body = { routing_key: key.value, payload: payload.value, payload_encoding: "string", properties: object("properties", properties.value) };
      const { routed } = await ask("publish", { names: { vhost, name }, body });
      if (!routed) throw new Error("No queue took it: nothing is bound here that it fits.");
      return "It was published, and a queue took it.";
    },
  });
}
