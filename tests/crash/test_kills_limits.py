"""kill -9 under queues with limits: drop-head with dead letters, both ways to reject, a ring, policies that come and go
meanwhile, scheduled messages, redrive, priorities.  Judged by docs/durability.md.

Each message is in exactly one place: in its queue, in the queue of its dead letters, or it was acked, refused or
replaced.  `PENSTOCK_KILLS` sets how often (a third of it, 2 by default), `PENSTOCK_SEED` repeats a run's choices.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import orjson
import pytest

import penstock
from crash.limits_clients import BACKLOG, Family, Notes, Publisher, Ruler, Rules, Worker, due_of, level
from crash.model_clients import Client, end, happens
from crash.test_kills import KILLS, PART, SEED, audit, die_while_starting
from live_server import LiveServer

pytestmark = pytest.mark.crash

LIVES = max(2, KILLS // 3)
PATIENCE_S = 60.0
LENGTH, BYTES, RING = 40, 5000, 20

FAMILIES = (
    Family("short", ("short", "short-dead"), ("short", "short-dead"), "short", rejects=0.1),
    Family("closed", ("closed",), ("closed",), "closed"),
    Family("passed", ("passed", "passed-dead"), ("passed", "passed-dead"), "passed", refused="there"),
    Family("ring", ("ring",), ("ring",), "ring", ring=RING),
    Family("ruled", ("ruled", "ruled-dead"), ("ruled", "ruled-dead"), "ruled"),
    Family("later", ("amq.delayed.later", "due"), ("due",), "due", "later", timed=True),
    Family("scheduled", ("scheduled",), ("scheduled",), "scheduled", timed=True),
    Family("redriven", ("work", "grave"), ("work",), "work", rejects=0.4),
    Family("levels", ("levels",), ("levels",), "levels"),
)


def declare(client: penstock.Client) -> None:
    for name in ("short-dead", "passed-dead", "ruled-dead", "grave", "due", "scheduled"):
        client.declare(name)
    client.declare("short", max_length=LENGTH, max_length_bytes=BYTES, **letters_to("short-dead"))
    client.declare("closed", max_length=LENGTH, overflow="reject-publish")
    client.declare("passed", max_length=LENGTH, overflow="reject-publish-dlx", **letters_to("passed-dead"))
    client.declare("ring", ring_size=RING)
    client.declare("ruled", **letters_to("ruled-dead"))
    client.declare_exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    client.bind("due", "later", "due")
    client.declare("work", **letters_to("grave"))
    client.declare("levels", max_priority=4)


def letters_to(queue: str) -> dict[str, object]:
    return {"dead_letter_exchange": "", "dead_letter_routing_key": queue}


class Wrong(AssertionError):
    """What is not as it must be; it may be on its way."""


class Look:
    """One look at everything after a restart, while nobody else does anything."""

    def __init__(self, client: penstock.Client, families: dict[str, Notes], rules: Rules, where: str) -> None:
        self.client, self.families, self.rules, self.where = client, families, rules, where

    def all(self) -> None:
        for notes in self.families.values():
            self.settle(notes)
        self.policies()
        self.levels()

    def settle(self, notes: Notes) -> None:
        """Judge one family; from then on all is known of it.  What moves by itself may need a moment."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                present = self.judged(notes)
                break
            except Wrong:
                if time.monotonic() > until:
                    raise
        notes.gone |= (notes.sure | notes.asked | notes.maybe) - present
        notes.sure = present
        notes.asked.clear()
        notes.maybe.clear()

    def judged(self, notes: Notes) -> set[int]:
        """Every message of a family, each in one place.  Raises Wrong."""
        family = notes.family
        found = list[int]()
        for queue in family.places:
            found += self.queue(queue)
        present = set(found)
        twice = [number for number, count in Counter(found).items() if count > 1]
        self.no(twice, f"of {family.name} are twice in {family.places}")
        self.no(present & notes.gone, f"are back in {family.name}")
        self.no(present - notes.sure - notes.asked - notes.maybe, f"of {family.name} were never published")
        lost = notes.sure - notes.gone - notes.maybe - present
        if family.ring:  # the newest of what is ready stay
            lost = {number for number in lost if notes.last - number < family.ring}
        self.no(lost, f"are lost from {family.name}")
        return present

    def no(self, numbers: object, what: str) -> None:
        if numbers:
            some = sorted(numbers)[:9]  # type: ignore[call-overload]
            raise Wrong(f"{self.where}: {some} {what}")

    def queue(self, name: str) -> list[int]:
        """What is in one queue; its counts are those of what is there, none is early, and its limits hold."""
        ready = self.client.peek(name, 1 << 20)
        now = time.time_ns() // 1000
        waiting = self.client.peek(name, 1 << 20, states=("delayed",))
        told = self.client.queue(name)
        self.no([due for one in ready if (due := due_of(one.body)) > now], f"are times of what is in {name} too early")
        count, size = len(ready), sum(len(one.body) for one in ready)
        if (told["ready"], told["ready_bytes"]) != (count, size) or told["dying"] or told["leased"]:
            raise Wrong(f"{self.where}: {name} has {count} messages of {size} bytes and says {told}")
        most, weight = self.limits(name, told)
        if count > most or size > weight:
            raise Wrong(f"{self.where}: {name} has {count} messages of {size} bytes: {most} and {weight} are allowed")
        return [orjson.loads(one.body)["id"] for one in (*ready, *waiting)]

    def limits(self, name: str, told: dict[str, object]) -> tuple[float, float]:
        """Messages and bytes that may be ready; what a consumer held comes back beyond a limit that removes nothing."""
        match name:
            case "short":
                return LENGTH, BYTES
            case "closed" | "passed":
                return LENGTH + BACKLOG, float("inf")
            case "ring":
                return RING + BACKLOG, float("inf")
            case "ruled":
                rule = told["effective_policy_definition"]
                assert isinstance(rule, dict)
                if "overflow" not in rule:
                    return rule.get("max-length", float("inf")), rule.get("max-length-bytes", float("inf"))
        return float("inf"), float("inf")

    def policies(self) -> None:
        """They are those that were answered, or asked for; what rules the queue follows from them."""
        present: dict[str, dict[str, object] | None] = dict.fromkeys(self.rules.may)
        present |= {one["name"]: one["definition"] for one in self.client.policies()}
        for one in self.client.policies(operator=True):
            present[one["name"]] = one["definition"]
        for name, may in self.rules.may.items():
            assert present[name] in may, f"{self.where}: policy {name} is {present[name]}, not of {may}"
            self.rules.may[name] = [present[name]]
        rule = dict(present["high"] or present["low"] or {})
        for key, most in (present["operator"] or {}).items():
            rule[key] = min(rule.get(key, most), most)  # type: ignore[type-var]
        told = self.client.queue("ruled")
        assert told["effective_policy_definition"] == rule, f"{self.where}: {told} of {present}"
        assert told["policy"] == ("high" if present["high"] else "low" if present["low"] else None), self.where
        settings = {name: one["value"] for name, one in told["settings"].items()}
        for key in ("max-length", "max-length-bytes", "overflow"):
            assert settings.get(key.replace("-", "_")) == rule.get(key), f"{self.where}: {told['settings']} of {rule}"

    def levels(self) -> None:
        """A consumer is given the highest first, of one level the oldest."""
        wanted = sorted(self.families["levels"].sure, key=lambda number: (-level(number), number))
        found = list[int]()
        with self.client.consume("levels", backlog=0, timeout="300ms") as consumer:
            while len(found) < len(wanted) and (message := consumer.take(PATIENCE_S)) is not None:
                found.append(message.json()["id"])
        assert found == wanted, f"{self.where}: levels came as {found[:30]}, not as {wanted[:30]}"


def test_kills_of_queues_with_limits(tmp_path: Path) -> None:
    rnd = random.Random(SEED)
    families = {family.name: Notes(family) for family in FAMILIES}
    rules = Rules()
    print(f"PENSTOCK_SEED={SEED} PENSTOCK_KILLS={KILLS}: {LIVES} lives")
    server = LiveServer(tmp_path, ["--sync", "commit"], flight=True)
    with server:
        with penstock.connect(f"penstock://{server.ready['flight']}") as client:
            declare(client)
        for life in range(LIVES):
            url = f"penstock://{server.ready['flight']}"
            team: list[Client[Notes] | Client[Rules]] = [Ruler(url, rules, rnd.randrange(1 << 30), "ruler")]
            for name, notes in families.items():
                team.append(Publisher(url, notes, rnd.randrange(1 << 30), f"publisher-{name}"))
                team.append(Worker(url, notes, rnd.randrange(1 << 30), f"worker-{name}"))
            for client in team:
                client.start()
            time.sleep(rnd.uniform(0.3, 1.2) * PART)
            if life == LIVES - 1:
                happens(
                    lambda: rules.changes and families["closed"].refused and families["passed"].refused,
                    team, "nothing is refused, or no policy changed",
                )  # fmt: skip
            server.kill()
            end(team, f"PENSTOCK_SEED={SEED}, life {life}")
            if rnd.random() < 0.3:
                die_while_starting(server, rnd)
            server.start()
            with penstock.connect(f"penstock://{server.ready['flight']}") as client:
                Look(client, families, rules, f"PENSTOCK_SEED={SEED}, life {life}").all()
        with penstock.connect(f"penstock://{server.ready['flight']}") as client:
            all_that_waits_comes(client, families)
    for name, notes in families.items():
        print(f"{name}: {notes.last} sent, {notes.refused} refused, {notes.acked} acked, {len(notes.sure)} there")
    print(rules.changes, "changes of policies,", rules.redriven, "redriven")
    assert families["closed"].refused
    assert families["passed"].refused
    assert rules.changes
    assert "Traceback" not in server.output(), server.output()
    audit(server.data)


def all_that_waits_comes(client: penstock.Client, families: dict[str, Notes]) -> None:
    """No scheduled message waits longer than its time."""
    until = time.monotonic() + PATIENCE_S
    wanted = {"due": families["later"].sure, "scheduled": families["scheduled"].sure}
    for queue, numbers in wanted.items():
        while {message.json()["id"] for message in client.peek(queue, 1 << 20)} != numbers:
            assert time.monotonic() < until, f"{queue} has not all that were to come"
