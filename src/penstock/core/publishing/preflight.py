"""What transactions and sinks ask of publishing before their first record: they write as a whole or not at all.

Nothing is written here, and what is told is right until something else happens.
"""

from __future__ import annotations

from penstock.core.publishing import Publisher
from penstock.core.publishing.published import Refusal
from penstock.core.queue.queue import Queue
from penstock.core.queue.refusing import Reckoning, refusal
from penstock.errors import PreconditionFailed, QueueFull, Unroutable
from penstock.records.chunks import Now
from penstock.records.entries import Publishes, Topic


def refused_headers(publisher: Publisher, batch: Publishes) -> list[tuple[int, Refusal]]:
    """The rows that nothing could make acceptable, for what their headers ask or say."""
    if (publisher.typed or publisher.checked) and (wrong := publisher.unfit(batch)):
        found = {row: one.refusal for row, one in enumerate(publisher.traits.each(batch)) if one.refusal is not None}
        return sorted({**wrong, **found}.items())
    if all(one.refusal is None for one in publisher.traits.kinds(batch)):
        return []
    return [(row, one.refusal) for row, one in enumerate(publisher.traits.each(batch)) if one.refusal is not None]


def judged(publisher: Publisher, batch: Publishes) -> list[tuple[int, Refusal]]:
    """The rows that a publish would refuse whatever room there is."""
    refused, keyed = refused_headers(publisher, batch), publisher.keyed
    return refused if keyed is None else sorted({**dict(keyed.judge(batch)), **dict(refused)}.items())


class Preflight:
    """Batches that become visible together: `look` at all of them, ask for `room`, then write them as `admitted`."""

    def __init__(self, publisher: Publisher, what: str, *, mandatory: bool = False) -> None:
        """what: how a sentence calls it.  mandatory: a topic that nobody keeps is refused too."""
        self._publisher = publisher
        self._what = what
        self._mandatory = mandatory
        self._reckoning = Reckoning()
        self._known: set[Topic] = set()
        self._full: dict[Queue, int] = {}  # messages that have no room
        self.rows = 0  # looked at

    def look(self, now: Now, batch: Publishes) -> None:
        """The next of the batches, in order; nothing is changed.

        Errors: PreconditionFailed for a message that is refused whatever happens; Unroutable for a topic that nobody
        keeps.
        """
        refused = judged(self._publisher, batch)
        if refused:
            row, why = refused[0]
            others = f" ({len(refused) - 1} more are refused)" if len(refused) > 1 else ""
            raise PreconditionFailed(
                f"nothing of {self._what} is visible: its message {self.rows + row + 1} is refused: {why}{others}",
                reason=why.reason if isinstance(why, PreconditionFailed) else why.code,
            )
        if self._mandatory:
            self.refuse_unwanted(batch.distinct_topics)
        for queue in self._publisher.no_room(now, batch, self._reckoning).values():
            self._full[queue] = self._full.get(queue, 0) + 1
        self.rows += len(batch)

    def room(self) -> None:
        """Raises unless all that was looked at has room.

        Errors: PreconditionFailed for more than a queue may ever hold; QueueFull for more than it has room for now.
        """
        for queue, count in self._full.items():
            self._refuse_full(queue, count)

    def refuse_unwanted(self, topics: set[Topic]) -> None:
        """Unroutable for a topic that nobody keeps."""
        for topic in topics - self._known:
            if not self._publisher.wanted(topic):
                place = f"{topic.exchange}/{topic.name}" if topic.exchange else topic.name
                raise Unroutable(
                    f"nothing of {self._what} is visible: no queue takes topic '{place}' in vhost '{topic.vhost}' and "
                    "no topic of that name is declared, so its messages would be lost: declare one of them"
                )
        self._known |= topics

    def _refuse_full(self, queue: Queue, count: int) -> None:
        brings = self._reckoning.taken(queue) + count
        why = refusal(queue, count)
        if not queue.ever_holds(brings):
            raise PreconditionFailed(
                f"nothing of {self._what} is visible: it brings {brings} messages to queue '{queue.name}' in "
                f"vhost '{queue.vhost}', which may never hold so much: {queue.limits_told}; raise the limit, or make "
                "batches smaller",
                reason=why.reason,
            )
        raise QueueFull(f"nothing of {self._what} is visible: {why}", reason=why.reason)
