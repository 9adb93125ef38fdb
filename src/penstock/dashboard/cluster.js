// The members of a cluster of servers: who leads, who is in sync, how far each is, and who led before.

import { ask } from "./api.js";
import { Table, count, h, setText, size } from "./dom.js";
import { every } from "./lists.js";

const EVERY_MS = 2000;

export function cluster() {
  const members = new Table({
    caption: "Members", key: (row) => row.id, empty: "The register lists no member.",
    columns: [
      { title: "Server", header: true, cell: (row) => row.name },
      { title: "Role", cell: (row) => (row.leads ? h("strong", {}, "leads") : row.role) },
      { title: "In sync", cell: (row) => (row.inSync ? "yes" : h("span", { class: "badge paused" }, "no")) },
      { title: "On its disk up to LSN", number: true, cell: (row) => (row.lsn === null ? "" : String(row.lsn)) },
      { title: "Behind", number: true, cell: (row) => (row.lag === null ? "" : size(row.lag)) },
      { title: "Last word", number: true, cell: (row) => (row.silent === null ? "" : `${row.silent.toFixed(1)} s ago`) },
      { title: "Address", minor: true, cell: (row) => h("code", {}, row.address) },
    ],
  });
  const terms = new Table({
    caption: "Who led, newest first", key: (row) => String(row.term), empty: "Nobody has led yet.",
    columns: [
      { title: "Term", header: true, cell: (row) => String(row.term) },
      { title: "First LSN", number: true, cell: (row) => String(row.first) },
      { title: "Last LSN that the next leader found", number: true, cell: (row) => (row.last === null ? "leads now" : String(row.last)) },
    ],
  });
  const told = h("p", { class: "note", role: "status" });
  const tables = h("div", { hidden: true }, members.node, terms.node);
  const load = async () => {
    try {
      const all = await ask("cluster");
      members.show(rows(all));
      terms.show((all.terms ?? []).map(([term, first, last]) => ({ term, first, last })).toReversed());
      setText(told, sentence(all));
      tables.hidden = false;
    } catch (error) {
      setText(told, error.message);
      tables.hidden = true;
    }
  };
  const stop = every(load, EVERY_MS);
  return {
    title: "Cluster",
    node: h("div", {}, h("h1", {}, "Cluster"), h("section", { class: "box" }, told, tables)),
    close: stop,
  };
}

function rows(all) {
  return Object.entries(all.members ?? {}).map(([id, one]) => {
    const follower = all.followers?.[id];
    const mine = id === all.member;
    return {
      id,
      name: one.name,
      address: one.address,
      leads: id === all.leader,
      role: follower?.trial_seconds ? `follows, to keep up for ${follower.trial_seconds.toFixed(1)} s yet` : follower || mine ? "follows" : all.followers ? "not connected" : "",
      inSync: (all.in_sync ?? []).includes(id),
      lsn: follower ? follower.acked_lsn : mine ? all.lsn : null,
      lag: follower ? follower.lag_bytes : null,
      silent: follower ? follower.silent_seconds : null,
    };
  });
}

function sentence(all) {
  const few = (all.in_sync ?? []).length < all.min_in_sync;
  const parts = [
    `Cluster ${all.cluster}, term ${all.term}: ${count((all.in_sync ?? []).length)} of ${count(Object.keys(all.members ?? {}).length)} members in sync, ${all.min_in_sync} needed for a confirm.`,
    few && "Nothing is confirmed until there are more.",
    all.committed_lsn && `Committed up to LSN ${all.committed_lsn}.`,
    all.cut_records && `${count(all.cut_records)} records that others go on without were cut off the log of ${all.name}: penstock cluster lost lists them.`,
    all.trouble && `${all.name} says: ${all.trouble}.`,
  ];
  return parts.filter(Boolean).join(" ");
}
