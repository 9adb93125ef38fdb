"""Any history of declares, alterations, policies, address settings and restarts leaves the settings that follow from
what there is at its end: worked out here from scratch, key by key, for each queue by itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from choices import examples
from penstock.config.queue_arguments import read_policy
from penstock.core.state.durable import DurableState, canonical
from penstock.records.queue_settings import AddressSetting, QueueSettings
from unit.core.world import World

NAMES = ("a", "a.b", "a.b.c", "b", "b.c")
PATTERNS = ("", "^a", "b", r"a\.b$", "^nothing$")
ADDRESSES = ("#", "a.#", "a.*", "a.b", "*", "b.c")
LIMITS = ("message_ttl", "delivery_limit", "max_length", "max_length_bytes")
OTHERS = ("dead_letter_exchange", "dead_letter_routing_key", "max_deliveries", "lease_period", "overflow")
VALUES: dict[str, tuple[object, ...]] = {
    "message_ttl": (1_000, 2_000, 3_000), "max_length_bytes": (0, 10, 40), "delivery_limit": (-1, 0, 2, 5),
    "max_length": (0, 1, 4),
    "dead_letter_exchange": ("x", "y"), "dead_letter_routing_key": ("k", "l"), "max_deliveries": (1, 2),
    "lease_period": (1_000, 2_000), "overflow": ("drop-head", "reject-publish"),
}  # fmt: skip
IN_MILLISECONDS = ("message_ttl", "lease_period")
BY_OPERATORS = ("message_ttl", "delivery_limit", "max_length", "max_length_bytes", "overflow")
_REST = QueueSettings()


@dataclass
class Ruler:
    """A policy as the model has it."""

    name: str
    pattern: str
    priority: int
    says: dict[str, object]


@dataclass
class Model:
    """What there is, and nothing worked out ahead."""

    queues: dict[str, dict[str, object]] = field(default_factory=dict[str, dict[str, object]])  # what was given
    policies: dict[str, Ruler] = field(default_factory=dict[str, Ruler])
    operators: dict[str, Ruler] = field(default_factory=dict[str, Ruler])
    addresses: dict[str, int] = field(default_factory=dict[str, int])  # pattern -> max_delivery_attempts

    def ruler(self, name: str, among: dict[str, Ruler]) -> dict[str, object]:
        matching = [one for one in among.values() if re.search(one.pattern, name)]
        return min(matching, key=lambda one: (-one.priority, one.name)).says if matching else {}

    def effective(self, name: str) -> dict[str, object]:
        given, says, operator = self.queues[name], self.ruler(name, self.policies), self.ruler(name, self.operators)
        out = dict[str, object]()
        for key in VALUES:
            present = [one[key] for one in (given, says, operator) if key in one]
            if key in LIMITS:
                if present:
                    out[key] = min(present, key=lambda value: 10**9 if value == -1 else int(str(value)))
            elif key in given:
                out[key] = given[key]
            elif present:
                out[key] = operator.get(key, says.get(key))
        closest = [one for one in ADDRESSES if one in self.addresses and self.matches(one, name)]
        if closest and "max_deliveries" not in out:
            out["max_deliveries"] = self.addresses[max(closest, key=self.closeness)]
        if "dead_letter_exchange" not in out:
            out.pop("dead_letter_routing_key", None)  # nobody says where to: it cannot be, and is not applied
        return out

    def matches(self, pattern: str, name: str) -> bool:
        text = re.escape(pattern).replace(r"\.\#", r"(\..+)?").replace(r"\#", ".*").replace(r"\*", r"[^.]+")
        return re.fullmatch(text, name) is not None

    def closeness(self, pattern: str) -> tuple[bool, bool, int]:
        return not set(pattern) & {"*", "#"}, "#" not in pattern, len(pattern)


class History:
    """Any list of small numbers is one."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.world = World()
        self.model = Model()

    def next(self, below: int) -> int:
        return self.numbers.pop() % below if self.numbers else 0

    def some(self, keys: tuple[str, ...]) -> dict[str, object]:
        return {key: VALUES[key][self.next(len(VALUES[key]))] for key in keys if self.next(3) == 0}

    def queue(self) -> str | None:
        names = list(self.model.queues)
        return names[self.next(len(names))] if names else None

    def run(self) -> None:
        steps: tuple[Callable[[], None], ...] = (
            self.declare, self.declare, self.alter, self.alter, self.policy, self.policy, self.operator,
            self.unset, self.address, self.delete, self.restart,
        )  # fmt: skip
        while self.numbers:
            steps[self.next(len(steps))]()
            if self.next(3):  # else the next step comes between the portions
                self.world.turn()
                while self.world.core.next_deadline()[0] == 0:
                    self.world.core.tick(self.world.now)
                    self.world.turn()
                self.look()

    def look(self) -> None:
        for name in self.model.queues:
            queue = self.world.core.queue("/", name)
            wanted = self.model.effective(name)
            found = {key: getattr(queue.settings, key) for key in VALUES}
            assert found == {key: wanted.get(key, getattr(_REST, key)) for key in VALUES}, name

    def declare(self) -> None:
        name = NAMES[self.next(len(NAMES))]
        if name not in self.model.queues:
            given = self.some((*LIMITS, *OTHERS))
            if "dead_letter_exchange" not in given:
                given.pop("dead_letter_routing_key", None)
            self.model.queues[name] = given
            own = QueueSettings(**given)  # type: ignore[arg-type]
            self.world.core.declare_queue(self.world.now, "/", name, own, given=given)

    def alter(self) -> None:
        if (name := self.queue()) is not None:
            given = self.some((*LIMITS, *OTHERS))
            if "dead_letter_exchange" not in given:
                given.pop("dead_letter_routing_key", None)
            self.model.queues[name] = given
            own = QueueSettings(**given)  # type: ignore[arg-type]
            self.world.core.alter_queue(self.world.now, self.world.core.queue("/", name), own, given)

    def delete(self) -> None:
        if (name := self.queue()) is not None:
            del self.model.queues[name]
            self.world.core.delete_queue(self.world.now, self.world.core.queue("/", name))

    def policy(self) -> None:
        self._put(operator=False)

    def operator(self) -> None:
        self._put(operator=True)

    def _put(self, *, operator: bool) -> None:
        name, pattern, priority = "pqr"[self.next(3)], PATTERNS[self.next(len(PATTERNS))], self.next(3)
        says = self.some(BY_OPERATORS if operator else (*LIMITS, *OTHERS)) or {"message_ttl": 2_000}
        definition = {
            key.replace("_", "-"): int(str(value)) // 1000 if key in IN_MILLISECONDS else value
            for key, value in says.items()
        }
        policy = read_policy("/", name, pattern, definition, priority=priority, operator=operator)
        self.world.core.set_policy(self.world.now, policy)
        (self.model.operators if operator else self.model.policies)[name] = Ruler(name, pattern, priority, says)

    def unset(self) -> None:
        operator = self.next(2) == 1
        among = self.model.operators if operator else self.model.policies
        if among:
            name = sorted(among)[self.next(len(among))]
            del among[name]
            self.world.core.delete_policy(self.world.now, "/", name, operator=operator)

    def address(self) -> None:
        self.model.addresses = {pattern: self.next(4) + 1 for pattern in ADDRESSES if self.next(3) == 0}
        found = [AddressSetting("/", one, {"max_delivery_attempts": n}) for one, n in self.model.addresses.items()]
        self.world.core.rule_by_file(self.world.now, (), found)

    def restart(self) -> None:
        self.world.restart(clean=bool(self.next(2)))


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.integers(0, 255), min_size=20, max_size=300), st.integers(1, 9))
def test_settings_in_force_follow_from_what_there_is(numbers: list[int], tables: int) -> None:
    follows(numbers, tables)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.integers(0, 255), min_size=20, max_size=200), st.integers(1, 9))
def test_they_follow_where_a_change_goes_in_portions(numbers: list[int], tables: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.core.commands.topology.AT_ONCE", 2)
        patch.setattr("penstock.core.commands.topology.LOOKS", 3)
        follows(numbers, tables)


def follows(numbers: list[int], tables: int) -> None:
    history = History(numbers)
    history.run()
    history.world.turn()
    live = canonical(history.world.core.durable_state())
    assert history.world.folded(1_000_000) == live
    assert history.world.folded(tables) == live
    assert DurableState.decode(live.encode()) == live
