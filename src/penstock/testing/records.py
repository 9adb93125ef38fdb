"""What a test does with records: it asks for those of a SOW topic or what is available in a queue, and removes some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from penstock.core.sow.select import SelectList, parse_select
from penstock.errors import InvalidArgument, LogBroken, NotFound
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.records.field_tables import FieldValue
from penstock.testing.arguments import check_count, check_text, check_texts
from penstock.testing.instance import Instance
from penstock.testing.running import VHOST, Running
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.core.sow.holding import Sow
    from penstock.history.history import History


@dataclass(frozen=True, slots=True)
class Record:
    """One record of an answer.  `key` is None in an answer about a queue."""

    key: str | None
    topic: str
    body: bytes
    lsn: int
    bookmark: str
    properties: bytes = b""

    @property
    def headers(self) -> Mapping[str, FieldValue]:
        """The publisher's headers; empty without any."""
        return header_codec.decode(self.properties).headers or {}

    def json(self) -> Any:
        """The body parsed as JSON.  Raises ValueError when it is none."""
        return orjson.loads(self.body)


class Records(Running):
    def sow(
        self,
        topic: str,
        filter: str | None = None,
        order_by: str | Sequence[str] | None = None,
        top_n: int | None = None,
        skip_n: int | None = None,
        *,
        select: str | Sequence[str] | None = None,
    ) -> list[Record]:
        """The records of a SOW topic, or what is available in a queue now.  It changes and leases nothing.

        order_by    `/total DESC, /id`, or a list of such parts; without it their order says nothing
        top_n       the first so many after `skip_n`
        select      which fields of a JSON body are sent
        Raises NotFound, InvalidArgument for a topic without a key, ExpressionError.
        """
        check_text(filter=filter)
        check_texts(order_by=order_by, select=select)
        check_count(top_n=top_n, skip_n=skip_n)
        fields = select_of(select)
        return self.command(lambda instance: list(records_of(instance, topic, filter, order_by, top_n, skip_n, fields)))

    def sow_delete(
        self,
        topic: str,
        filter: str | None = None,
        keys: Sequence[str] | None = None,
        data: bytes | str | None = None,
        by: str = "",
    ) -> int:
        """Remove records, durably: those a filter matches (`1=1`: all), those of some keys, or that of a message.

        How many there were.  What waits in queues stays.
        """
        from penstock.server.sow.query import Counts, Query, Removal, numbers_of, plain, run, steps

        check_text(filter=filter, by=by)
        body = data.encode() if isinstance(data, str) else data
        removal = Removal(filter, None if keys is None else tuple(keys), body)

        def work(instance: Instance) -> int:
            core, sow = instance.core, _sow(instance, topic)
            if removal.filter is None:
                count = core.sow_delete(instance.engine.now(), sow, numbers_of(sow, removal), by=by)
            else:
                instance.make_durable()
                numbers, lsns = sow.index.snapshot().arrays()
                rows = run(Query(removal.filter), numbers, lsns, _history(instance), VHOST, Counts(),
                           keyed=sow.rule.given)  # fmt: skip
                matched = [lsn for batch in rows for lsn, *_ in plain(batch)]
                by_lsn = dict(zip(lsns.tolist(), numbers.tolist(), strict=True))
                count = sum(
                    core.sow_delete(instance.engine.now(), sow, some, lsns=theirs, by=by)
                    for some, theirs in steps([by_lsn[lsn] for lsn in matched], matched)
                )
            instance.make_durable()
            return count

        return self.command(work)


def select_of(parts: str | Sequence[str] | None, *, gathered: bool = False) -> SelectList | None:
    """A select list as it is written; InvalidArgument beside a projection."""
    found = parse_select([parts] if isinstance(parts, str) else parts or ())
    if found is not None and gathered:
        raise InvalidArgument("select does not go with projection and grouping: those say which fields there are")
    return found


def _sow(instance: Instance, text: str) -> Sow:
    exchange, slash, key = text.partition("/")
    if slash and exchange:
        try:
            return instance.core.sow(VHOST, exchange, key)
        except (NotFound, InvalidArgument):
            pass  # a key of the default exchange may hold a slash
    return instance.core.sow(VHOST, "", text)


def _history(instance: Instance) -> History:
    from penstock.history.history import History

    return History(instance.log, lambda: False)


def records_of(
    instance: Instance,
    name: str,
    filter: str | None = None,
    order_by: str | Sequence[str] | None = None,
    top_n: int | None = None,
    skip_n: int | None = None,
    select: SelectList | None = None,
) -> Iterator[Record]:
    """What a query finds; on the loop."""
    import numpy as np

    from penstock.core.queue.places import AVAILABLE
    from penstock.core.sow.select import order_of
    from penstock.server.flight.reading.queue_contents import lsns_of
    from penstock.server.sow.query import Counts, Query, keys_of, plain, run

    query = Query(filter, order_of(order_by), top_n, skip_n or 0)
    if instance.engine.broken is not None:
        raise LogBroken(instance.engine.broken)
    sow: Sow | None = None
    if (VHOST, "", name) in instance.core.sows.by_name or instance.core.find_queue(VHOST, name) is None:
        sow = _sow(instance, name)
        numbers, lsns = sow.index.snapshot().arrays()
    else:
        queue = instance.core.queue(VHOST, name)
        chunks = [lsns_of(chunk) for chunk in queue.chunks(*AVAILABLE)]
        lsns = np.concatenate(chunks) if chunks else np.zeros(0, np.int64)
        numbers = lsns.astype(np.uint64)
    instance.make_durable()
    history = _history(instance)
    keyed = None if sow is None else sow.rule.given
    for batch in run(query, numbers, lsns, history, VHOST, Counts(), keyed=keyed):
        keys = [None] * len(batch) if sow is None else keys_of(batch, numbers, lsns, given=sow.rule.given)
        for key, (lsn, topic, via, properties, body) in zip(keys, plain(batch), strict=True):
            exchange = "" if via is None else history.exchange_of(via)
            where = f"{exchange}/{topic}" if exchange else topic
            sent = body if select is None else select.body(body)
            yield Record(key, where, sent, lsn, format_bookmark(instance.log.origin, lsn), properties)
