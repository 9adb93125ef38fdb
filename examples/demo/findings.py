"""What came out, beside what had to come out: each figure with its truth, and the figures that only inform.

Reads the books of the workers, the queues and topics of the server, and Spark's Parquet; judges by equality alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
from flights import TOPIC, Delay, Group, Truth
from shared import World, read_books

import penstock

DEAD_REASON = "max_deliveries"
_ID = re.compile(rb'\{"id":(\d+),')


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that must be so."""

    group: str
    what: str
    expected: object
    found: object

    @property
    def good(self) -> bool:
        """Whether it is."""
        return self.expected == self.found


def published(client: penstock.Client, truth: Truth) -> Iterator[Figure]:
    """The topic, as the log has it from the first message to the last."""
    numbers = Counter[int]()
    for batch in client.replay_batches(TOPIC, columns=["body"]):
        numbers.update(_number(body) for body in batch.column("body").to_pylist())
    yield Figure("published", "messages of the topic in the log", len(truth.all), numbers.total())
    yield Figure("published", "distinct flights among them", len(truth.all), len(numbers))
    yield Figure("published", "flights missing or unknown", 0, len(truth.all ^ numbers.keys()))


def _number(body: bytes) -> int:
    found = _ID.match(body)
    return int(found[1]) if found else -1


def waiting(client: penstock.Client, queue: str, states: tuple[str, ...] = ("ready", "leased", "delayed")) -> int:
    """Messages of a queue in these states."""
    counts = client.queue(queue)
    return sum(int(counts[state]) for state in states)


def view_unread(client: penstock.Client, truth: Truth) -> Iterator[Figure]:
    """The view that nobody has read so far: count, take, compare."""
    yield Figure("views", "/carrier = 'UA', waiting", len(truth.carrier), waiting(client, "united", ("ready",)))
    taken = Counter[int]()
    with client.consume("united", backlog=5_000, timeout="1s") as flights:
        while sum(taken.values()) < len(truth.carrier) + 1:
            message = flights.take(0.2 if len(taken) == len(truth.carrier) else 10.0)
            if message is None:
                break
            with message:
                taken[_number(message.body)] += 1
    yield Figure("views", "/carrier = 'UA', taken once each", len(truth.carrier), sum(taken.values()))
    yield Figure("views", "/carrier = 'UA', missing or unknown", 0, len(truth.carrier ^ taken.keys()))


def view_watched(world: World, truth: Truth) -> Iterator[Figure]:
    """The view that was read as it filled."""
    seen = frozenset(read_books(world.folder / "late")["id"].tolist())
    yield Figure("views", "/arr_delay > 120, distinct seen", len(truth.late), len(seen))
    yield Figure("views", "/arr_delay > 120, missing or unknown", 0, len(truth.late ^ seen))


def worked(books: Any, truth: Truth) -> Iterator[Figure]:
    """The workers' books, each flight counted once however often it was worked."""
    good = books[books["worked"] == 1]
    numbers, first = np.unique(good["id"], return_index=True)
    yield Figure("worked", "distinct flights worked", len(truth.workable), len(numbers))
    yield Figure("worked", "flights missing or unknown", 0, len(truth.workable ^ frozenset(numbers.tolist())))
    minutes = int(good["delay"][first].sum(dtype=np.int64))
    yield Figure("worked", "minutes of delay, added up by the workers", truth.minutes, minutes)
    failed = frozenset(books["id"][books["worked"] == 0].tolist())
    yield Figure("worked", "distinct flights on which a worker failed", len(truth.poison), len(failed))


def dead(client: penstock.Client, truth: Truth) -> Iterator[Figure]:
    """The dead letters, looked at in their queue."""
    numbers, reasons, marks = Counter[int](), Counter[str](), Counter[str]()
    for batch in client.queue_batches("dead", columns=["body"]):
        for body in batch.column("body").to_pylist():
            letter = orjson.loads(body)
            numbers[letter["flight"]["id"]] += 1
            reasons[letter["reason"]] += 1
            marks[letter["bookmark"]] += 1
    yield Figure("dead letters", "in the queue", len(truth.poison), numbers.total())
    yield Figure("dead letters", "distinct messages they come from", len(truth.poison), len(marks))
    yield Figure("dead letters", "flights missing, or dead without need", 0, len(truth.poison ^ numbers.keys()))
    yield Figure("dead letters", f"with the reason {DEAD_REASON}", len(truth.poison), reasons[DEAD_REASON])


def leftovers(client: penstock.Client, spark: bool) -> Iterator[Figure]:
    """Nothing waits, is leased or delayed, but for the dead letters."""
    for queue in ("work", "late", "united", *(("to-spark",) if spark else ())):
        yield Figure("left waiting", f"in {queue}", 0, waiting(client, queue))


def spark_groups(client: penstock.Client, table: Path, truth: Truth) -> Iterator[Figure]:
    """Both outputs of the pipeline, group by group."""
    rows = pq.read_table(table.resolve()).to_pylist() if table.exists() else []
    yield from _compared("Parquet", Counter((row["carrier"], row["hour"]) for row in rows), rows, truth)
    commits = list(_commits(client))
    rows = commits[-1] if commits else []
    yield from _compared("topic", Counter((row["carrier"], row["hour"]) for row in rows), rows, truth)
    sums = [sum(row["flights"] for row in commit) for commit in commits]
    repeated = sum(later <= earlier for earlier, later in pairwise(sums))
    yield Figure("Spark", "topic: batches that appear again", 0, repeated)


def _compared(name: str, groups: Counter[Group], rows: list[dict[str, Any]], truth: Truth) -> Iterator[Figure]:
    found = {
        (row["carrier"], row["hour"]): Delay(
            row["flights"], row["arrived"], row.get("total_delay"), row.get("mean_delay")
        )
        for row in rows
    }
    wrong = sum(not _same(truth.delays.get(group), found.get(group)) for group in truth.delays.keys() | found.keys())
    yield Figure("Spark", f"{name}: groups (carrier, hour)", len(truth.delays), groups.total())
    yield Figure("Spark", f"{name}: groups that differ in any of four columns", 0, wrong)
    yield Figure("Spark", f"{name}: flights in all groups", len(truth.all), sum(one.flights for one in found.values()))


def _same(a: Delay | None, b: Delay | None) -> bool:
    """Counts and sums are equal; means may differ in the last bit of a double."""
    if a is None or b is None or (a.flights, a.arrived, a.total) != (b.flights, b.arrived, b.total):
        return False
    if a.mean is None or b.mean is None:
        return a.mean is b.mean
    return math.isclose(a.mean, b.mean, rel_tol=1e-15)


def _commits(client: penstock.Client) -> Iterator[list[dict[str, Any]]]:
    """What the topic `delays` holds, cut where a group comes again: every batch brings each group once."""
    commit, groups = list[dict[str, Any]](), set[Group]()
    for batch in client.replay_batches("delays", columns=["body"]):
        for body in batch.column("body").to_pylist():
            row = orjson.loads(body)
            group = (row["carrier"], row["hour"])
            if group in groups:
                yield commit
                commit, groups = [], set()
            commit.append(row)
            groups.add(group)
    if commit:
        yield commit


def commits(client: penstock.Client) -> int:
    """How many batches of the pipeline are visible in the topic."""
    return sum(1 for _ in _commits(client))
