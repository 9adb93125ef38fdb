// Durable readers and Spark pipelines, with how far they are behind.

import { ask } from "./api.js";
import { Table, count, duration, h, rate, say, size } from "./dom.js";
import { every } from "./lists.js";

const BECAME = { keep: "kept", drop: "dropped", "dead-letter": "put aside", fail: "stopped it" };

// Each rule of `expect` that some row did not meet.
const rules = (row) => (row.expect?.rules ?? []).filter((one) => one.rows)
  .map((one) => `${one.rule}: ${count(one.rows)} ${BECAME[one.otherwise] ?? one.otherwise}`).join("; ");

export function streams() {
  const readers = new Table({
    caption: "Streams", key: (row) => row.stream, empty: "There is no durable reader.",
    columns: [
      { title: "Stream", header: true, cell: (row) => row.stream },
      { title: "Reads", long: true, cell: (row) => row.queue ?? row.topic ?? row.pattern ?? "" },
      { title: "Mode", minor: true, cell: (row) => row.mode },
      { title: "State", cell: (row) => (row.state === "held" ? "held" : h("span", { class: "badge bad" }, row.state)) },
      { title: "Lag", number: true, cell: (row) => count(row.lag) },
      { title: "Behind", number: true, cell: (row) => duration(row.age_seconds) },
      { title: "Log held", number: true, minor: true, cell: (row) => size(row.held_bytes) },
      { title: "Last read", number: true, minor: true, cell: (row) => (row.read_seconds === null ? "–" : `${duration(row.read_seconds)} ago`) },
    ],
  });
  const pipelines = new Table({
    caption: "Pipelines", key: (row) => row.pipeline, empty: "The settings name no pipeline.",
    columns: [
      { title: "Pipeline", header: true, cell: (row) => row.pipeline },
      { title: "State", cell: (row) => (row.state === "failed" || row.state === "gone" ? h("span", { class: "badge bad" }, row.state) : row.state) },
      { title: "Rows", number: true, cell: (row) => rate(row.rows_per_second) },
      { title: "Lag", number: true, cell: (row) => count(row.lag) },
      { title: "Batches", number: true, minor: true, cell: (row) => count(row.batches) },
      { title: "Last batch", number: true, minor: true, cell: (row) => (row.batch_ms === undefined ? "–" : duration(row.batch_ms / 1000)) },
      { title: "State rows", number: true, minor: true, cell: (row) => count(row.state_rows) },
      { title: "Late rows", number: true, minor: true, cell: (row) => count(row.late_rows) },
      { title: "Rules", long: true, minor: true, cell: (row) => rules(row) },
      { title: "Error", long: true, minor: true, cell: (row) => row.error ?? row.waits_for ?? "" },
    ],
  });
  const load = async (quiet) => {
    try {
      const [some, lines] = await Promise.all([ask("streams"), ask("pipelines")]);
      readers.show(some);
      pipelines.show(lines);
    } catch (error) {
      if (!quiet) say(error.message, true);
    }
  };
  const stop = every(load);
  return {
    title: "Streams and pipelines",
    node: h("div", {}, h("h1", {}, "Streams and pipelines"),
      h("section", { class: "box" }, h("h2", {}, "Streams"), readers.node),
      h("section", { class: "box" }, h("h2", {}, "Pipelines"), pipelines.node)),
    event: (kind) => { if (kind.startsWith("stream.") || kind === "pipeline.changed") load(true); },
    close: stop,
  };
}
