// Policies: settings that queues and exchanges have by their names, and what operators do not let them go beyond.

import { ask } from "./api.js";
import { Table, confirmed, count, h, object, shown } from "./dom.js";
import { paged, place } from "./lists.js";

const APPLY_TO = ["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"];
const KINDS = { policies: ["Policies", "Policy"], operatorPolicies: ["Operator policies", "OperatorPolicy"] };

export function policies() {
  const lists = Object.entries(KINDS).map(([path, [title, noun]]) => {
    const table = new Table({
      caption: title, key: (row) => `${row.vhost}\n${row.name}`, empty: "There is none.",
      columns: [
        { title: "Policy", header: true, cell: (row) => row.name },
        { title: "Vhost", minor: true, cell: (row) => row.vhost },
        { title: "Names that match", long: true, cell: (row) => h("code", {}, row.pattern) },
        { title: "Of", minor: true, cell: (row) => row["apply-to"] },
        { title: "Priority", number: true, minor: true, cell: (row) => count(row.priority) },
        { title: "Sets", long: true, cell: (row) => Object.entries(row.definition).map(([key, value]) => `${key} ${shown(value)}`).join(", ") },
        { title: "", button: "Change…", press: (row) => go(setting(noun, row)) },
        { title: "", button: "Remove…", press: (row) => go(clearing(noun, row)) },
      ],
    });
    const list = paged(path, "policy", table);
    const go = async (asking) => { if (await asking) list.load(); };
    return [title, { ...list, node: h("div", {}, list.node, h("p", { class: "buttons" }, h("button", { type: "button", onclick: () => go(setting(noun)) }, "Add…"))) }];
  });
  return place({
    title: "Policies", boxes: lists, kinds: ["policy.", "operator_policy."],
    above: h("p", { class: "note" }, "Of the policies that match a name the one of the highest priority applies. An operator policy applies beside it, and the stricter of both holds."),
  });
}

function setting(noun, row = { name: "", vhost: "/", pattern: "", "apply-to": "queues", priority: 0, definition: {} }) {
  const old = row.name !== "";
  const name = h("input", { value: row.name, required: true, readonly: old });
  const vhost = h("input", { value: row.vhost, required: true, readonly: old });
  const pattern = h("input", { value: row.pattern, required: true, placeholder: "^jobs-", spellcheck: "false" });
  const of = h("select", {}, APPLY_TO.map((one) => h("option", { selected: one === row["apply-to"] }, one)));
  const priority = h("input", { type: "number", value: row.priority, required: true });
  const definition = h("textarea", { rows: 4, required: true, spellcheck: "false", placeholder: '{"max-length": 10000, "overflow": "reject-publish"}' });
  definition.value = old ? JSON.stringify(row.definition, null, 1) : "";
  return confirmed({
    title: old ? `Change ${row.name}` : "Add a policy", verb: old ? "Change" : "Add", text: null,
    fields: [["Name", name], ["Vhost", vhost], ["Names that match, a regular expression", pattern], ["Of", of], ["Priority", priority], ["What it sets, a JSON object", definition]]
      .map(([label, field]) => h("label", {}, label, field)),
    act: async () => {
      const body = { pattern: pattern.value, "apply-to": of.value, priority: Number(priority.value), definition: object("what it sets", definition.value) };
      await ask(`set${noun}`, { names: { vhost: vhost.value, name: name.value }, body });
      return `${name.value} holds.`;
    },
  });
}

function clearing(noun, { vhost, name, pattern }) {
  return confirmed({
    title: `Remove ${name}`, verb: "Remove", danger: true,
    text: h("p", {}, `What matches ${pattern} has then what its declaration and other policies say.`),
    act: async () => {
      await ask(`clear${noun}`, { names: { vhost, name } });
      return `${name} is gone.`;
    },
  });
}
