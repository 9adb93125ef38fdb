"""Consumers with `x-bookmark`: messages of topics from a place in the log on, then live.  No lease, nothing to settle.

Deliveries have tags like all others, and an ack or a reject of such a tag is taken without a word: there is nothing to
settle, so prefetch does not count either.  What holds such a consumer back is its connection: when the client does not
read, nothing more is delivered, and when it reads again the log is read on from where it was.

    x-bookmark               where to start (docs/replay.md); the queue's name stands for what the queue is a view of
    x-filter                 an expression
    x-rate, x-rate-max-gap   `1000` messages or `500KB` a second, or `2X` the speed they came with; a duration
    x-bookmark-not-found     epoch, now or fail
    x-select                 which fields of a JSON body are sent: `-/,+/id`
    x-fully-durable          true: nothing more, for all that is told is durable
    x-timestamp              true: each delivery has a header `x-timestamp`, when it was stored, milliseconds
    x-info                   true: each delivery has a header `x-bookmark`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.core.sow.select import SelectList, narrowed_select, parse_select
from penstock.errors import InvalidArgument, LogBroken, NotFound, PenstockError, ProtocolError
from penstock.expr import Context
from penstock.records.one_or_each import rows_at, value_at
from penstock.server.amqp.consumer_arguments import BOOKMARK, STAMP, count_of, filter_of, flag, informed, text_of
from penstock.server.follow import ENDLESS
from penstock.server.replaying.log_source import Asked
from penstock.server.replaying.page import Page
from penstock.server.replaying.selection import fields_of, select_of, selection_for
from penstock.server.views.record_query import sent
from penstock.units import parse_duration
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.pieces import header_too_large, too_large
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.session import Session
    from penstock.server.replaying.log_source import Follower

KNOWN = frozenset(
    {BOOKMARK, "x-filter", "x-rate", "x-rate-max-gap", "x-bookmark-not-found", "x-select", "x-fully-durable", STAMP}
    | {"x-info", "x-priority"}
)


class Following:
    """One such consumer: the taker of its follower."""

    def __init__(
        self, session: Session, channel: Channel, tag: str, *, info: bool, timed: bool, select: SelectList | None
    ) -> None:
        self.tag = tag
        self.follower: Follower | None = None
        self.announced = False  # the client knows the tag
        self._session = session
        self._channel = channel
        self._info = info
        self._timed = timed
        self._select = select
        self._cutting = False  # a page is on its way to be cut to the fields that are sent
        self._after: Callable[[], None] | None = None  # what came to be told meanwhile
        self._over = False
        self._share = session.engine.shares.of("amqp_replays")
        self._counted = False  # among those of its user
        self._encoder = channel.encoder(tag)

    def room(self) -> int:
        """As long as the connection takes bytes."""
        open_ = self.announced and self._channel.open and not self._session.closed
        return ENDLESS if open_ and not self._session.outgoing.full and not self._cutting else 0

    def take(self, page: Page) -> None:
        """Deliver, off the loop cut to the fields that are sent."""
        if self._select is None:
            self._deliver(page, page.bodies)
            return
        work, off = partial(sent, page.bodies, self._select), self._session.engine.replays.off
        if off is None:
            self._deliver(page, work())
            return
        self._cutting = True
        off(work, partial(self._cut, page))

    def _cut(self, page: Page, bodies: list[bytes]) -> None:
        self._cutting = False
        if self._channel.open and not self._session.closed and self._channel.followings.get(self.tag) is self:
            self._deliver(page, bodies)
        after, self._after = self._after, None
        if after is not None:
            after()
        elif self.follower is not None:
            self.follower.step()
        self._session.engine.replays.done()

    def _deliver(self, page: Page, bodies: list[bytes]) -> None:
        session, count = self._session, len(page)
        properties = page.properties
        if self._info or self._timed:
            origin = session.engine.log.origin
            properties = [
                informed(
                    page.properties_of(row),
                    bookmark=format_bookmark(origin, page.lsns[row]) if self._info else None,
                    time=page.time_of(row) if self._timed else None,
                )
                for row in range(count)
            ]
        topics, frame_max = page.topics, session.machine.frame_max
        large = too_large(properties, frame_max) if count else None
        if large is not None:
            lsn, size = page.lsns[large], len(value_at(properties, large))
            session.engine.call_soon(partial(self._fail, header_too_large(f"message {lsn}", size, frame_max)))
            count, bodies = large, bodies[:large]
            topics, properties = rows_at(topics, slice(large)), rows_at(properties, slice(large))
        first = self._channel.tags.skip(count)
        frames = self._encoder.encode(first, False, topics, properties, bodies)
        session.outgoing.deliver(self._channel.number, frames, page.size)
        session.counters.delivered_consume_auto_ack += count

    def level(self) -> None:
        """AMQP has no word for it."""

    def ended(self, error: PenstockError | None) -> None:
        """The end of a range is the end of the consumer; what cannot be read is the channel's trouble."""
        self._tell(self._cancel if error is None else partial(self._fail, error))

    def _tell(self, what: Callable[[], None]) -> None:
        """Behind what is being cut."""
        if self._cutting:
            self._after = what
        else:
            what()

    def _fail(self, error: PenstockError) -> None:
        if isinstance(error, LogBroken):
            self._cancel()  # the server's trouble
        elif self._channel.open:
            self._session.fail_channel(self._channel.number, error, m.BasicConsume)

    def count(self) -> None:
        """It is its user's until it ends.  Raises Unavailable."""
        session = self._session
        self._share.take(session.logins.who(session.user))
        self._counted = True

    def _uncount(self) -> None:
        if self._counted:
            self._counted = False
            self._share.give(self._session.user)

    def _cancel(self) -> None:
        if self.announced:
            self._uncount()
            self._channel.followings.pop(self.tag, None)
            self._channel.notify_cancel(self.tag)
        else:
            self._over = True

    def announce(self) -> None:
        """The client knows the tag now."""
        self.announced = True
        if self._over:
            self._cancel()
        elif self.follower is not None:
            self.follower.step()

    def go_on(self) -> None:
        """The connection takes bytes again."""
        if self.follower is not None:
            self.follower.step()

    def close(self) -> None:
        """Deliver nothing more."""
        self._uncount()
        if self.follower is not None:
            self.follower.close()


def _refuse_strange(arguments: Mapping[str, object]) -> None:
    """Raises for what is not said to who reads a topic."""
    if flag(arguments, "x-live"):
        raise InvalidArgument(
            "consumer argument x-live: of a topic only what is durable is told; "
            'a queue with deliver = "early" sends ahead of the sync'
        )
    for key in arguments:
        if key not in KNOWN and key != "x-live":
            raise ProtocolError(f"consumer argument {key} does not go with {BOOKMARK}", reply_code=540)


def consume(session: Session, channel: Channel, name: str, tag: str, method: m.BasicConsume) -> None:
    """basic.consume with `x-bookmark`.  Raises what cannot be."""
    arguments = cast("Mapping[str, object]", method.arguments)
    _refuse_strange(arguments)
    text = partial(text_of, arguments)
    gap = text("x-rate-max-gap")
    try:
        micros = None if gap is None else parse_duration(gap)
    except ValueError as error:
        raise InvalidArgument(f"consumer argument x-rate-max-gap: {error}") from None
    if not name:
        raise NotFound("no queue and no topic is named")
    flag(arguments, "x-fully-durable")  # it always is
    fields, missing = text("x-select"), text("x-bookmark-not-found")
    select = None if fields is None else parse_select([fields])
    info, timed = flag(arguments, "x-info"), flag(arguments, STAMP)
    count_of(arguments, "x-priority", None)  # whoever reads a topic by himself has nobody to go before
    selection = selection_for(session.core, session.rights, session.vhost, "", name)
    if session.core.find_queue(session.vhost, name) is not None:
        session.core.queue(session.vhost, name, by=session)  # another connection's exclusive queue is its own
    select = select_of(session.core, selection, narrowed_select(select, fields_of(selection, session.rights)))
    following = Following(session, channel, tag, info=info, timed=timed, select=select)
    following.count()
    client = f"{session.peer}/{channel.number}"
    here = Context(client_name=client, user=session.user, instance_name=session.core.instance)
    try:
        following.follower = session.engine.replays.subscribe(
            Asked(
                selection,
                text(BOOKMARK) or "",
                filter_of(arguments, here),
                text("x-rate"),
                micros,
                "now" if missing is None else missing,
                rights=session.rights,
                name=name,
                client=client,
                user=session.user,
                tag=tag,
            ),
            following,
        )
    except BaseException:
        following.close()
        raise
    channel.followings[tag] = following
    if method.nowait:
        following.announce()
    else:
        channel.reply(m.BasicConsumeOk(tag), then=following.announce)
