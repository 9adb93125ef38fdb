// Who may log in, what for, and the vhosts there are.

import { Table, count, h, shown } from "./dom.js";
import { paged, place } from "./lists.js";

const limits = (value) => Object.entries(value ?? {}).map(([name, most]) => `${name} ${shown(most)}`).join(", ");

// Of each list: its path, what one of it is called, its heading, what an empty one says, its key, and its columns.
const LISTS = [
  ["users", "user", null, "There is none.", (row) => row.name, [
    { title: "User", header: true, cell: (row) => row.name },
    { title: "Tags", cell: (row) => row.tags.join(", ") },
    { title: "Limits", cell: (row) => limits(row.limits) },
  ]],
  ["permissions", "permission", "Permissions", "Nobody may do anything.", (row) => `${row.user}\n${row.vhost}`, [
    { title: "User", header: true, cell: (row) => row.user },
    { title: "Vhost", cell: (row) => row.vhost },
    ...["configure", "write", "read"].map((what) => ({ title: `May ${what}`, long: true, cell: (row) => h("code", {}, row[what] || "nothing") })),
  ]],
  ["vhosts", "vhost", "Vhosts", "There is none.", (row) => row.name, [
    { title: "Vhost", header: true, cell: (row) => row.name },
    { title: "Description", long: true, minor: true, cell: (row) => row.description },
    { title: "Messages", number: true, cell: (row) => count(row.messages) },
    { title: "Tracing", cell: (row) => (row.tracing ? h("span", { class: "badge paused" }, "on") : "") },
  ]],
  ["vhostLimits", "vhost", "Limits of vhosts", "No vhost has any.", (row) => row.vhost, [
    { title: "Vhost", header: true, cell: (row) => row.vhost },
    { title: "Limits", cell: (row) => limits(row.value) },
  ]],
];

export function users() {
  return place({
    title: "Users", kinds: ["user.", "vhost.", "permission."],
    above: h("p", { class: "note" }, "A name is matched by regular expressions, found anywhere in it. ", h("code", {}, "penstock user"), " and ", h("code", {}, "penstock vhost"), " change what stands here."),
    boxes: LISTS.map(([path, noun, title, empty, key, columns]) => [title, paged(path, noun, new Table({ caption: title ?? "Users", key, empty, columns }))]),
  });
}
