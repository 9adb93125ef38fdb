// The files of the log.

import { ask } from "./api.js";
import { Table, count, h, plural, say, setText, size } from "./dom.js";
import { every } from "./lists.js";

export function log() {
  const table = new Table({
    caption: "Segments of the log", key: (row) => row.name, empty: "The log has no segment.",
    columns: [
      { title: "Segment", header: true, cell: (row) => h("code", {}, row.name) },
      { title: "First LSN", number: true, minor: true, cell: (row) => String(row.first) },
      { title: "Last LSN", number: true, minor: true, cell: (row) => String(row.last) },
      { title: "Rows", number: true, cell: (row) => count(row.rows) },
      { title: "Batches", number: true, minor: true, cell: (row) => count(row.batches) },
      { title: "Size", number: true, cell: (row) => size(row.bytes) },
      { title: "State", cell: (row) => [row.closed ? "closed" : "written to", row.compressed && "compressed", row.generation > 0 && `rewritten ${row.generation}×`].filter(Boolean).join(", ") },
    ],
  });
  const told = h("p", { class: "note", role: "status" });
  const archive = h("pre", { hidden: true });
  const load = async (quiet = false) => {
    try {
      const all = await ask("log");
      table.show(all.segments.toReversed());
      const bytes = all.segments.reduce((sum, one) => sum + one.bytes, 0);
      setText(told, `${plural(all.segments.length, "segment")}, ${size(bytes)}; LSN ${all.first_lsn} to ${all.durable_lsn} on disk, ${all.last_lsn} given out.`);
      archive.hidden = all.archive === null;
      if (all.archive) setText(archive, `archive ${JSON.stringify(all.archive, null, 2)}`);
    } catch (error) {
      if (!quiet) say(error.message, true);
    }
  };
  const stop = every(load);
  return {
    title: "Log",
    node: h("div", {}, h("h1", {}, "Log"), h("section", { class: "box" }, told, table.node, archive)),
    event: (kind) => { if (kind.startsWith("log.")) load(true); },
    close: stop,
  };
}
