"""Records of SOW topics that go: deleted, or expired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.core.actions.rules import Rule, Rules

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.sow.holding import Sow
    from penstock.server.actions.events import Chosen

REASONS = {"deleted": "delete", "expired": "expire"}
"""Why a record goes, as the log says it, and the event that it is."""


class Removed(Protocol):
    """Is told of records that are gone."""

    def __call__(self, rules: Chosen, lsns: Sequence[int], after: int, name: str, reason: str, *, oof: bool) -> None:
        """Those at these LSNs, ascending, by the record at `after`."""
        ...


class RemovalWatch:
    """Watches the topics that some action is about."""

    def __init__(self, core: Core, rules: Rules, removed: Removed) -> None:
        self._core = core
        self._removed = removed
        self._rules = rules
        self._names = {*rules.expire, *rules.delete, *((on.vhost, on.topic) for on, _ in rules.oof)}
        self._watched = dict[int, _Watcher]()
        self._version = -1

    def look(self) -> None:
        """Find topics that came since; called once a turn."""
        core = self._core
        if not self._names or self._version == core.topology_version:
            return
        self._version = core.topology_version
        for sow in core.sows:
            if sow.id not in self._watched and not sow.exchange and (sow.vhost, sow.name) in self._names:
                watcher = self._watched[sow.id] = _Watcher(self._removed, self._rules, sow)
                sow.watchers.append(watcher)
                sow.acting = True
        for number in [number for number in self._watched if number not in core.sows.by_id]:
            del self._watched[number]


class _Watcher:
    """Takes notes of one topic."""

    def __init__(self, removed: Removed, rules: Rules, sow: Sow) -> None:
        name = sow.vhost, sow.name
        self._removed = removed
        self._name = sow.name
        self._rules = {reason: removal_rules(rules, name, reason) for reason in REASONS}

    def dropped(self, lsn: int, numbers: Sequence[int], lsns: Sequence[int], reason: str) -> None:
        """The record at `lsn` says that these are gone."""
        rules, outside, why = self._rules.get(reason, ([], [], ""))
        for some, oof in ((rules, False), (outside, True)):
            if some:
                self._removed(plain(some), sorted(lsns), lsn, self._name, why, oof=oof)


def removal_rules(rules: Rules, name: tuple[str, str], reason: str) -> tuple[list[Rule], list[Rule], str]:
    """What a topic's records set off that go for a reason: as removals, as out of focus, and AMPS_REASON."""
    event = REASONS.get(reason)
    outside = [rule for on, rule in rules.oof if (on.vhost, on.topic) == name and on.kind in {"all", event} and event]
    if event == "expire":
        return rules.expiring(*name, ("time_limit",)), outside, "time_limit"
    return list(rules.delete.get(name, ())) if event else [], outside, ""


def plain(rules: Sequence[Rule]) -> tuple[tuple[Rule, None, None, str], ...]:
    return tuple((rule, None, None, "") for rule in rules)
