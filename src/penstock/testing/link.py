"""The server's own commands over a link in memory: without sockets, without threads, in the caller's turn.

What a Flight client may ask is parsed, judged, carried out and answered by the server's own code.  A job runs where it
is handed over, and whoever waits for its answer lets the instance go on until it is there.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from penstock.errors import InvalidArgument, Unavailable, told_as
from penstock.expr import TopicPattern
from penstock.server.flight.calls import Caller
from penstock.server.flight.handover import Answer, Aside, Handover
from penstock.server.people.access import Who
from penstock.wire.flight.commands import DEFAULT_VHOST, Consume, Get, Publish
from penstock.wire.flight.failures import error_from
from penstock.wire.flight.received import Bounds
from penstock.wire.flight.tickets import command, parse_exchange, parse_get, parse_put

if TYPE_CHECKING:
    from penstock.core.commands.transactions import Transacted
    from penstock.server.committing import Committing
    from penstock.server.flight.doget import Reads
    from penstock.server.flight.gatekeeper import Gatekeeper
    from penstock.server.flight.publish import Publishing
    from penstock.testing.instance import Instance
    from penstock.wire.flight.codec import Upload

T = TypeVar("T")


class Stepped(Handover):
    """A handover within one thread."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance.engine, lambda run: run())
        self._instance = instance

    def post(self, job: Callable[[], None]) -> None:
        """Run a job now."""
        job()
        self.engine.arm()

    def submit(self, job: Callable[[Answer[T]], None]) -> Answer[T]:
        """Run a job now; its answer is there when this returns.  Unavailable when only time can bring it."""
        answer = super().submit(job)
        at = None
        while not answer.given:
            if at == (at := (self.engine.core.last_lsn, self.engine.log.durable)):
                raise Unavailable("the broker does not answer before something else has happened")
            self._instance.commit()
        return answer


class Link:
    """All that a broker asks its server for, as a client does.  On the loop."""

    def __init__(self, instance: Instance) -> None:
        self.handover = Stepped(instance)

    def aside(self, peer: str = "") -> Aside:
        """What operations of the core stand on."""
        return Aside(self.handover, peer, _never)

    def parted(self, text: str) -> tuple[str, str]:
        """Exchange and key of a topic as people write it."""
        return self.handover.engine.core.topology.place_of(DEFAULT_VHOST, text)

    def rows(self, client: str, operation: str, **fields: object) -> Iterator[Mapping[str, Any]]:
        """The rows of a DoGet's answer; fields that are None are left out."""
        _, batches = self._reads.table(_caller("", client), read(operation, **fields))
        for batch in batches:
            yield from batch.to_pylist()

    def publish(
        self, exchange: str, upload: Upload, *, publisher: str | None, sequence: int | None, delta: bool | None
    ) -> int:
        """The LSN of one message once it is durable, 0 where it was not stored.  Raises what it is refused for."""
        wanted = Publish(exchange=exchange, delta=delta)
        if publisher is not None or sequence is not None:
            asked = command("publish", exchange=exchange, delta=delta, publisher=publisher, sequence=sequence)
            wanted = cast("Publish", parse_put(asked))
        told = self._publishing.store(PRESENT, wanted, upload, wanted.sequence)
        for refused in cast("list[dict[str, object]]", told["refused"]):
            raise error_from(refused)
        return cast("int", told["first"])

    def commit(self, committing: Committing) -> Transacted:
        """What a transaction came to, once that is durable."""

        def job(answer: Answer[Transacted]) -> None:
            done = committing.step(partial(self.handover.again, job, answer))
            if done is not None:
                self.handover.when_persisted(done.lsn, answer, done)

        return self.handover.submit(job).wait()

    def remove(self, by: str, **fields: object) -> int:
        """Records of a topic; how many there were."""
        from penstock.server.flight.log_actions import sow_delete

        given = {name: value for name, value in listed(fields).items() if value is not None}
        return cast("int", sow_delete(self.handover).answer(_caller(by, by), "sow_delete", given)["removed"])

    @cached_property
    def _gate(self) -> Gatekeeper:
        from penstock.server.flight.gatekeeper import Gatekeeper

        return Gatekeeper(self.handover, (DEFAULT_VHOST,))

    @cached_property
    def _reads(self) -> Reads:
        from penstock.server.flight.doget import Reads

        return Reads(self.handover, self._gate, None)

    @cached_property
    def _publishing(self) -> Publishing:
        from penstock.server.flight.publish import Publishing

        return Publishing(self.handover, Bounds(), self._gate, waiting_most=0)


def read(operation: str, **fields: object) -> Get:
    """The command of a DoGet, read as the server reads it; fields that are None are left out."""
    return parse_get(command(operation, **listed(fields)))


def consumed(**fields: object) -> Consume:
    """The command of a consumer, in the same way."""
    found = parse_exchange(command("consume", **listed(fields)))
    assert isinstance(found, Consume)
    return found


def replaced(filter: object, max_backlog: object, topic: object) -> None:
    """InvalidArgument for terms that no consumer may ask for."""
    consumed(queue="any" if topic is None else topic, filter=filter, max_backlog=max_backlog)
    if topic is not None:
        check_topic("topic", topic)


def check_topic(name: str, value: object) -> None:
    """InvalidArgument for what is no queue, no topic and no pattern."""
    with told_as(InvalidArgument, f"{name} is {value!r}: "):
        TopicPattern(str(value))


LISTED = ("order_by", "projection", "grouping", "select", "conflation_key", "keys")
"""Fields that have one text or several: a list in commands."""


def listed(fields: Mapping[str, object]) -> dict[str, object]:
    """What somebody asks for, as commands have it."""
    return {name: _several(value) if name in LISTED else value for name, value in fields.items()}


def _several(value: object) -> object:
    return [value] if isinstance(value, str) else list[object](value) if isinstance(value, tuple) else value


def _caller(user: str, peer: str) -> Caller:
    return Caller(Who(user), peer, _never)


def _never() -> bool:
    """Whether the client has hung up: it is in this thread, and waits."""
    return False


PRESENT = _caller("", "")
"""Whoever uses the broker, where nobody asks who that is."""
