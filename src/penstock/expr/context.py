"""What an evaluation is given beside the message: what an expression may ask that is not in it (who asks, its lease,
its key, the instance), and how much work one message may cause.

Whoever evaluates says which groups of questions it can answer (`known`); a function of another group is refused when
the text is compiled, so that no filter rests on a NULL that nobody meant.

Work is a count of array elements looked at, not a clock, so the answer never depends on the machine.  A filter of a
thousand comparisons and a body with a hundred thousand elements are each harmless; together they would hold the loop
for half a minute.  A message that needs more than its allowance is NULL as a whole: no filter matches it.  Expressions
of a few predicates are not metered.  Who may not be held up, the loop, also says how much work a whole batch may cause
(`bounded`).  Beyond that the evaluation is given up with `HandOver` and belongs somewhere else: there it gives the
answer that it would have given.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Literal, TypeAlias, cast

from penstock.records.dataclass import dataclass

Group = Literal["client", "instance", "lease", "sow"]

EVERYTHING: frozenset[Group] = frozenset(("client", "instance", "lease", "sow"))
"""All groups: for evaluation by hand."""

RECORDS: frozenset[Group] = frozenset(("sow",))
"""What the filter of a query of records may ask for beside the message."""

Texts: TypeAlias = "str | Sequence[str | None] | None"
Numbers: TypeAlias = "int | float | Sequence[int | float | None] | None"


@dataclass(frozen=True, slots=True)
class Context:
    """Answers for a batch: one value for all rows, or a sequence with one for each.  None is NULL.

    `last_read` and `last_leased` are seconds since the epoch; `lease_count` is how often the message was leased.
    """

    client_name: Texts = None
    client_version: Texts = None
    user: Texts = None
    instance_name: Texts = None
    sow_key: Texts = None
    last_read: Numbers = None
    last_leased: Numbers = None
    lease_count: Numbers = None


OF_THE_CONTEXT: dict[str, tuple[str, Group]] = {
    "CLIENT_NAME": ("client_name", "client"),
    "CLIENT_VERSION": ("client_version", "client"),
    "USER": ("user", "client"),
    "AMPS_INSTANCE_NAME": ("instance_name", "instance"),
    "SOW_KEY": ("sow_key", "sow"),
    "SOW_KEY_HASH": ("sow_key", "sow"),
    "LAST_READ": ("last_read", "lease"),
    "LAST_LEASED": ("last_leased", "lease"),
    "LEASE_COUNT": ("lease_count", "lease"),
}
"""Function -> the attribute of Context that it reads, and its group."""

ASKED: dict[Group, str] = {
    "client": "who asks, which filters of subscriptions, queries and acks know, and of rights the user",
    "instance": "the instance's name, which filters of subscriptions, queries, acks and rights know",
    "lease": "the leases of the message, which change while a filter is asked once for each message",
    "sow": "the key of a record, which queries of records and their removal know",
}
"""What a function of the group asks for and who knows it, in words."""


def answers(context: object, name: str) -> Iterable[object]:
    """One attribute as a column, endless when it is the same for all rows."""
    if context is None:
        return repeat(None)
    value = cast("object", getattr(context, name))
    return repeat(value) if value is None or isinstance(value, str | int | float) else cast("Sequence[object]", value)


VISITS_PER_BYTE = 8
VISITS_FREE = 4096
UNLIMITED = 1 << 62

LOOP_VISITS = 20_000
"""Elements that the evaluations of one batch may look at on the loop: 20 ms of the dearest comparisons (1 us each)."""

LOOP_BODY = 256 * 1024
"""Bytes of a body beyond which nothing parses it on the loop."""

LOOP_BYTES = 4 * 2**20
"""Bytes of bodies that are parsed for one batch on the loop: 10 ms."""


LOOP_US = 20_000
"""Longer than this the evaluations of one batch may not hold the loop."""


class TooMuchWork(Exception):
    """The allowance of this message is used up.  Never leaves the compiled function."""


class HandOver(Exception):
    """The evaluation takes more than the loop has time for.  Nothing is known of its answers."""


class Meter(threading.local):
    """What is left for the message at hand, and for all that a caller may do at once; of each thread for itself."""

    left: int = UNLIMITED
    batch: int = UNLIMITED

    def start(self, size: int) -> None:
        """The allowance of a message of so many bytes: some eight passes over whatever array it holds."""
        self.left = VISITS_PER_BYTE * size + VISITS_FREE

    def spend(self, visits: int) -> None:
        """Count elements about to be looked at.  Raises TooMuchWork, and HandOver inside `bounded`."""
        self.left -= visits
        if self.left < 0:
            raise TooMuchWork
        self.take_time(visits)

    def take_time(self, visits: int) -> None:
        """Count work that no message is refused for.  Raises HandOver inside `bounded`, before it is done."""
        self.batch -= visits
        if self.batch < 0:
            raise HandOver

    def stop(self) -> None:
        """No message is at hand."""
        self.left = UNLIMITED

    @contextmanager
    def bounded(self, visits: int = LOOP_VISITS) -> Generator[None]:
        """So much work and no more inside; beyond it HandOver is raised."""
        self.batch = visits
        try:
            yield
        finally:
            self.batch = UNLIMITED


meter = Meter()
