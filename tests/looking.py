"""Every way to look at a queue, through real doors: what each shows, beside what the counts say.

shown(broker, queue)    one `Shown` for each reader: its name, what it showed, what it should have
the truth               the positions in the durable state, and the counts of the queue itself
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote, urlsplit

import pyarrow as pa

import penstock
from penstock.core.state.lsns import flat
from penstock.server.actions.steps import available_chunks
from penstock.testing import Broker
from penstock.wire.flight.bookmarks import parse_point
from penstock.wire.flight.tickets import STATES, command

MANY = 1000
"""Messages that a look at the first of a queue shows at most."""

TABLES = 32
"""Tables that a statement may name."""

CODES: Mapping[str, frozenset[str]] = {
    "ready": frozenset({"ready", "group_key", "keys", "max_leased"}),
    "held": frozenset({"barrier", "recovering"}),
    "leased": frozenset({"leased"}),
    "delayed": frozenset({"delayed"}),
    "dying": frozenset({"dying"}),
    "inactive": frozenset({"inactive"}),
    "foreign": frozenset({"foreign"}),
}
"""What may be said first of a message in each state."""


@dataclass(frozen=True)
class Wrong:
    """A reader that showed something else than there is."""

    queue: str
    reader: str
    shown: object
    there: object

    def __str__(self) -> str:
        return f"{self.queue}: {self.reader} shows {self.shown}, there is {self.there}"


class Looker:
    """The clients of one broker between two restarts."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._stack = ExitStack()
        self._client: penstock.Client | None = None
        self._http: http.client.HTTPConnection | None = None
        self._login = ""

    def __enter__(self) -> Self:
        url = urlsplit(self.broker.http_url)
        login = urlsplit(self.broker.flight_url)
        self._login = base64.b64encode(f"{login.username}:{login.password}".encode()).decode()
        self._http = http.client.HTTPConnection(url.hostname or "", url.port, timeout=30)
        self._client = self._stack.enter_context(penstock.connect(self.broker.flight_url))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._http is not None:
            self._http.close()

    @property
    def client(self) -> penstock.Client:
        assert self._client is not None
        return self._client

    def get(self, path: str, queue: str = "") -> Any:
        """The answer of an HTTP path about a queue."""
        assert self._http is not None
        self._http.request("GET", path.format(quote(queue)), headers={"authorization": f"Basic {self._login}"})
        answer = self._http.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return json.loads(content)

    def rows(self, what: str, columns: Sequence[str] = ("lsn", "state"), **fields: object) -> list[dict[str, Any]]:
        """The rows of a Flight read."""
        ticket = command(what, columns=list(columns), **fields)
        batches = list(self.client._batches(ticket))
        return [row for batch in batches for row in cast("pa.RecordBatch", batch).to_pylist()]

    # -- the truth

    def counts(self, queue: str) -> dict[str, int]:
        """What the queue itself says, by state."""
        stats = self.client.stats(queue)
        return {
            state: int(stats["inactive_message_count" if state == "inactive" else state])
            for state in ("ready", "held", "leased", "delayed", "dying", "inactive", "foreign")
        }

    def living(self, queue: str) -> list[int]:
        """The positions that a checkpoint would have, after a recount."""

        def work(instance: Any) -> list[int]:
            found = instance.core.queue("/", queue)
            found.check()
            return cast("list[int]", flat(found.snapshot()[0]).tolist())

        return self.broker.command(work)

    def sizes(self, lsns: list[int]) -> dict[int, int]:
        """Bytes of the bodies of messages, as the log has them."""

        def work(instance: Any) -> dict[int, int]:
            instance.make_durable()
            rows = instance.log.read(lsns)
            return {lsn: len(body) for lsn, body in zip(rows.lsns, rows.bodies, strict=True)}

        return self.broker.command(work) if lsns else {}

    # -- all of them

    def look(self, queue: str, view: str, stream: str) -> list[Wrong]:
        """What is shown wrong of a queue.  view: one that counts its messages; stream: a name that no stream had."""
        out: list[Wrong] = []

        def same(reader: str, shown: object, there: object) -> None:
            if shown != there:
                out.append(Wrong(queue, reader, shown, there))

        client, counts, living = self.client, self.counts(queue), self.living(queue)
        ready = counts["ready"] + counts["held"]
        available = ready + counts["foreign"]
        same("counts in all", sum(counts.values()), len(living))

        here = self.by_state(self.rows("queue", name=queue, states=list(STATES)))
        for state in STATES:
            same(f"content, {state}", len(here.get(state, ())), counts[state])
        shown = {lsn for lsns in here.values() for lsn in lsns}
        same("content, each once", len(shown), sum(map(len, here.values())))
        same("content, among the living", sorted(shown - set(living)), [])
        same("content, all but inactive", len(shown), len(living) - counts["inactive"])

        spark = self.rows("queue", ("lsn", "exchange", "attempt", "state"), name=queue, states=["ready", "leased"])
        same("Spark's batch read", len(spark), counts["ready"] + counts["leased"])
        first = [message.lsn for message in client.peek(queue, 3)]
        same("peek of three over Flight", first, sorted(here.get("ready", []))[:3])

        there = sorted([*here.get("ready", ()), *here.get("held", ()), *here.get("foreign", ())])
        peeked = self.get("/api/queues/%2F/{}/peek?count=1000", queue)
        same("peek over HTTP", [lsn_of(one["bookmark"]) for one in peeked], there[:MANY])
        same("peek of three over HTTP", [lsn_of(one["bookmark"]) for one in self.get(
            "/api/queues/%2F/{}/peek?count=3", queue)], there[:3])  # fmt: skip
        held = self.get("/api/queues/%2F/{}/leases", queue)
        same("leases over HTTP", len(held), min(counts["leased"], MANY))
        facts = self.get("/api/queues/%2F/{}", queue)
        same("HTTP, ready", facts["messages_ready"], ready)
        same("HTTP, leased", facts["messages_unacknowledged"], counts["leased"])
        same("HTTP, delayed", facts["penstock"]["delayed"], counts["delayed"])

        details = client.details(queue)
        states = self.by_state(details["messages"])
        if len(living) <= MANY:
            for state in counts:
                same(f"details, {state}", len(states.get(state, ())), counts[state])
        same("details", [one["lsn"] for one in details["messages"]], living[:MANY])

        same("sow", sorted(one.lsn for one in client.sow(queue)), there)
        same("sow in the process", sorted(one.lsn for one in self.broker.sow(queue)), there)
        for reader, rows in (
            ("aggregated sow", list(client.sow(queue, projection="COUNT(1) AS /n", grouping="1"))),
            ("view", list(client.sow(view))),
        ):
            same(reader, sum(row.json()["n"] for row in rows), available)
        same("changes", self.changes(queue, stream), available)
        found = client.action("move", queue=queue, to="elsewhere", dry=True)
        same("move", found["matched"], ready + counts["delayed"] + counts["inactive"])
        same("an action's query", self.walked(queue), there)

        state_of = {lsn: state for state, lsns in here.items() for lsn in lsns}
        for lsn in {state_of.get(lsn, "inactive"): lsn for lsn in living}.values():
            told = client.action("explain", queue=queue, bookmark=str(lsn))["queues"][0]["reasons"]
            state = state_of.get(lsn, "inactive")
            same(f"explain of one that is {state}", told[0]["code"] in CODES[state] or told, True)
        told = [reason["code"] for reason in client.action("explain", queue=queue)["reasons"]]
        same("explain, empty", "empty" in told, not living)
        same("explain, nothing ready", bool({"empty", "none_ready"}.intersection(told)), not counts["ready"])
        for state in ("leased", "delayed", "dying", "inactive", "foreign"):
            same(f"explain, {state}", state in told, counts[state] > 0)

        stats, sizes = client.stats(queue), self.sizes(living)
        for key, chosen in (
            ("ready_bytes", here.get("ready", [])), ("leased_bytes", here.get("leased", [])), ("bytes", living),
        ):  # fmt: skip
            same(key, stats[key], sum(sizes[lsn] for lsn in chosen))
        same("seconds_behind", stats["seconds_behind"] > 0, bool(living))
        same("floor", self.floor(queue), living[0] if living else None)
        return out

    @staticmethod
    def by_state(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
        out: dict[str, list[int]] = {}
        for row in rows:
            out.setdefault(row["state"], []).append(row["lsn"])
        return out

    def changes(self, queue: str, stream: str) -> int:
        """What a stream counts that is told of changes."""
        client = self.client
        client.action("stream_open", stream=stream, mode="changes", queue=queue)
        planned = client.action("plan_changes", stream=stream, queue=queue, start=0)["batch"]
        return sum(len(self.rows("plan", ("lsn",), stream=stream, batch=batch)) for batch in range(2, planned + 1, 2))

    def walked(self, queue: str) -> list[int]:
        """What `query_sow` of an action goes through."""
        return self.broker.command(
            lambda instance: [lsn for chunk in available_chunks(instance.core.queue("/", queue)) for lsn in chunk]
        )

    def floor(self, queue: str) -> int | None:
        """The oldest message, as retention sees it."""
        found = self.broker.command(lambda instance: instance.core.queue("/", queue).floor())
        return None if found >= 1 << 62 else found

    def query(self, queues: Sequence[str]) -> dict[str, dict[str, int]]:
        """Messages of many queues by state, as SQL counts them."""
        out: dict[str, dict[str, int]] = {}
        for start in range(0, len(queues), TABLES):
            some = " UNION ALL ".join(
                f"SELECT '{name}' AS queue, state, count(lsn) AS n FROM queue.\"{name}\" GROUP BY ALL"
                for name in queues[start : start + TABLES]
            )
            for row in self.client.query(some):
                out.setdefault(row["queue"], {})[row["state"]] = row["n"]
        return out


def lsn_of(bookmark: str) -> int:
    """The position of a message."""
    return parse_point(bookmark).lsn
