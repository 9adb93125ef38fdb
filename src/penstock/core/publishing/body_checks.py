"""Bodies held to the JSON Schema of their topic as they arrive, through whichever door: a batch at a time.

`json_schema_check` of the topic says what becomes of a body that does not fit: it is refused, or stored and counted.
What was stored once is not looked at again: neither as a dead letter, nor when it is due, nor what another site took.
A delta is looked at as what it makes of its record.  Large batches are looked at off the loop before (`questions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, TypeAlias, cast

from penstock.core.effects import Question
from penstock.core.publishing.published import Refusal
from penstock.core.topology.routing import Router
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.expr.bodies import heavy
from penstock.expr.json_schema import TOLD_MOST, BodyCheck, compile_check
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Topic
from penstock.records.message_bodies import listed
from penstock.records.message_types import JSON, MESSAGE_TYPE, MessageType
from penstock.records.sow_settings import JSON_SCHEMA, JSON_SCHEMA_CHECK

Settings: TypeAlias = Callable[[str, str, str], Mapping[str, object] | None]

LOOP_ROWS = 2_000
"""Bodies that are looked at on the loop: some 5 ms."""

LOOP_WORK = 1 << 22
"""Steps of schemas that are made on the loop: 10 to 40 ms."""

CHEAP = 16
"""Steps for a byte of a schema that leaves the loop time for every delta of a batch."""

REASONS_MOST = 1_000
"""Bodies of a batch whose reasons are worked out one by one; what is beyond hears that it does not fit."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A schema that was good when it was declared and cannot be read by this server: nothing fits it."""

    name: str
    reason: str
    costliest: ClassVar[int] = 0

    def bound(self, body: bytes) -> int:
        """No steps."""
        return 0

    told_steps = bound

    def fits(self, body: bytes, properties: bytes) -> bool:
        """Never: what it asks of a body is not known."""
        return False

    def why(self, body: bytes, properties: bytes) -> str:
        """Why the schema cannot be read."""
        return self.reason


Check: TypeAlias = "BodyCheck | Unread"


@dataclass(slots=True)
class Failures:
    """What did not fit a topic's schema since the start."""

    count: int = 0
    last: str = ""  # why


class BodyChecks:
    """The checks of all topics."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.failures: dict[tuple[str, str, str], Failures] = {}
        self._at_once = -1, LOOP_WORK  # a version of the topology, and what holds of it

    @property
    def at_once(self) -> int:
        """Bytes of bodies that may be looked at on the loop, whichever topics they are of."""
        version, out = self._at_once
        if version != self._router.version:
            costliest = max(
                (found[0].costliest for one in self._router.checked if (found := self._of(*one))), default=1
            )
            self._at_once = self._router.version, (out := LOOP_WORK // max(1, costliest))
        return out

    def wrong(self, batch: Publishes, skip: int, passes: Callable[[int], bool]) -> dict[int, Refusal]:
        """The rows that are refused; of those that are stored all the same it is noted.

        passes: rows that are looked at elsewhere.
        """
        if batch.checked or not self._router.checked:
            return {}
        batch.checked = True
        out: dict[int, Refusal] = {}
        bodies = listed(batch.bodies)
        for topic, check, rejects, rows in self._held(batch, skip):
            known, heads = _judged(batch, check), batch.properties_of
            bad = [row for row in rows if not (known[row] if row in known else check.fits(bodies[row], heads(row)))]
            bad = [row for row in bad if not passes(row)]
            steps = list(accumulate(check.told_steps(bodies[row]) for row in bad))
            for place, row in enumerate(bad):
                told = place < REASONS_MOST and (not place or steps[place] <= TOLD_MOST)
                why = check.why(bodies[row], heads(row)) if told else "like others of its batch"
                if (refusal := self._noted(topic, why, rejects=rejects)) is not None:
                    out[row] = refusal
        return out

    def of_body(self, topic: Topic, body: bytes, properties: bytes) -> Refusal | None:
        """Why one body, of a message with this header, is refused."""
        found = self._check_of(topic) if self._router.checked else None
        if found is None or found[0].fits(body, properties):
            return None
        return self._noted(topic, found[0].why(body, properties), rejects=found[1])

    def steps(self, topic: Topic, body: bytes) -> int:
        """Of the schema of a topic for a body; 0 for one that is cheap."""
        found = self._check_of(topic) if self._router.checked else None
        return 0 if found is None or found[0].costliest <= CHEAP else found[0].bound(body)

    def questions(self, batch: Publishes, skip: int) -> list[Question]:
        """What has to be looked at off the loop before this batch can be published without holding the loop up."""
        if batch.checked or not self._router.checked:
            return []
        out, bodies = list[Question](), listed(batch.bodies)
        for _, check, _, rows in self._held(batch, skip):
            known = _judged(batch, check)
            left = [row for row in rows if row not in known]
            if left and not isinstance(check, Unread) and _holds_up(check, [bodies[row] for row in left]):
                out.append(Question(check, left, name=check.name))
        return out

    def _held(self, batch: Publishes, skip: int) -> Iterator[tuple[Topic, Check, bool, Sequence[int]]]:
        """The topics of a batch that have a check, whether it rejects, and their rows."""
        for topic in batch.distinct_topics:
            if (found := self._check_of(topic)) is not None:
                rows: Sequence[int] = range(skip, len(batch.bodies))
                if isinstance(batch.topics, list):
                    rows = [row for row in rows if batch.topics[row] == topic]
                yield topic, *found, rows

    def _check_of(self, topic: Topic) -> tuple[Check, bool] | None:
        return self._of(topic.vhost, topic.exchange, topic.name)

    def _of(self, vhost: str, exchange: str, name: str) -> tuple[Check, bool] | None:
        settings = self._router.declared(vhost, exchange, name)
        mode = check_mode(settings or {})
        if settings is None or mode == "off":
            return None
        text = cast("str", settings[JSON_SCHEMA])
        try:
            kind = cast("MessageType", settings.get(MESSAGE_TYPE, JSON))
            return compile_check(text, kind), mode == "reject"
        except (InvalidArgument, PreconditionFailed) as error:  # its library went, or takes it no longer
            return Unread(text, str(error)), mode == "reject"

    def _noted(self, topic: Topic, why: str, *, rejects: bool) -> Refusal | None:
        noted = self.failures.setdefault((topic.vhost, topic.exchange, topic.name), Failures())
        noted.count, noted.last = noted.count + 1, why
        if not rejects:
            return None
        return InvalidArgument(f"the body does not fit the JSON Schema of topic {topic.name!r}: {why}")


def check_mode(settings: Mapping[str, object]) -> str:
    """`off`, `warn` or `reject`; without a schema `off`."""
    return "off" if settings.get(JSON_SCHEMA) is None else cast("str", settings.get(JSON_SCHEMA_CHECK, "reject"))


def _judged(batch: Publishes, check: Check) -> Mapping[int, int]:
    """Which rows are known to fit or not, by row."""
    return {} if batch.judged is None else batch.judged.get(check.name, {})


def _holds_up(check: BodyCheck, bodies: Sequence[bytes]) -> bool:
    """Whether to look at these would hold the loop up; bodies: one or more."""
    sizes = list(map(len, bodies))
    if len(bodies) > LOOP_ROWS or heavy(check.kind, sizes):
        return True
    return sum(sizes) * check.costliest > LOOP_WORK and sum(map(check.bound, bodies)) > LOOP_WORK
