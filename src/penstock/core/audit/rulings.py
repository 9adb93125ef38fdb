"""The audit of policies: what a queue is ruled by is there, and what goes lets go of its queues in the same group, or,
of very many, in those that follow.

From the records alone: which policies there are, and which of them the last record of each queue names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import numpy as np

from penstock.core.state.durable import DurableState
from penstock.core.state.lsns import Ints
from penstock.records.kinds import Kind

Key: TypeAlias = "tuple[bool, str, str]"
"""Whether it is an operator's, vhost, name."""


class PolicyAudit:
    """Policies, and who rules each queue."""

    def __init__(self, find: Callable[[str, Ints, str], None]) -> None:
        """find: takes the guarantee, LSNs and a sentence."""
        self._find = find
        self._there = set[Key]()
        self._going = set[Key]()  # of those that are gone: they let go of their queues a portion at a time
        self._rulers: dict[int, tuple[int, str, str, list[Key]]] = {}  # by queue: LSN, vhost, name, its policies

    def load(self, state: DurableState) -> None:
        """What was there before the records."""
        self._there = set(state.policies)
        for number, queue in state.queues.items():
            ruling = queue.ruling
            names = (None, None) if ruling is None else (ruling.policy, ruling.operator_policy)
            self._ruled(number, state.last_lsn, queue.vhost, queue.name, *names)

    def record(self, kind: Kind, name: str, header: dict[str, object]) -> None:
        """There is such a policy now, or none any more."""
        key = bool(header["operator"]), str(header["vhost"]), name
        if kind is Kind.POLICY:
            self._there.add(key)
            self._going.discard(key)
        else:
            self._there.discard(key)
            if header.get("more"):
                self._going.add(key)

    def declared(self, lsn: int, name: str, header: dict[str, object]) -> None:
        """A queue is ruled by what its QUEUE_DECLARE names."""
        self._ruled(lsn, lsn, str(header.get("vhost", "/")), name, *_rulers(header))

    def altered(self, number: int, lsn: int, header: dict[str, object]) -> None:
        """It is ruled by what its last QUEUE_ALTER names."""
        if (before := self._rulers.get(number)) is not None:
            self._ruled(number, lsn, before[1], before[2], *_rulers(header))

    def gone(self, number: int) -> None:
        """The queue is no more."""
        self._rulers.pop(number, None)

    def _ruled(self, number: int, lsn: int, vhost: str, name: str, policy: str | None, operator: str | None) -> None:
        keys: list[Key] = [(False, vhost, policy)] if policy is not None else []
        if operator is not None:
            keys.append((True, vhost, operator))
        self._rulers[number] = lsn, vhost, name, keys

    def close(self) -> None:
        """The end of the records: each queue is ruled by what is there."""
        for number, (lsn, vhost, name, keys) in sorted(self._rulers.items()):
            for key in keys:
                if key not in self._there and key not in self._going:
                    what = "operator policy" if key[0] else "policy"
                    text = f"queue '{name}' in vhost '{vhost}' is ruled by {what} '{key[2]}', which is not there"
                    self._find("policies", np.array([number, lsn]), text)


def _rulers(header: dict[str, object]) -> tuple[str | None, str | None]:
    ruling = cast("dict[str, str | None]", header.get("ruling") or {})
    return ruling.get("policy"), ruling.get("operator_policy")
