"""`queue recover`: what a purge, a deletion or a withdrawal took from a queue by mistake, published to it again.

Which messages those are the log says (`taken`); their bodies are read where they still are, from the log's segments,
from the archive, from a backup.  An exchange is made for it, bound to the one queue and deleted at the end: so no other
queue gets them, whatever shows the same topic, and each keeps its routing key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from penstock.cli.backups import ArchiveFolder
from penstock.cli.output import (
    DEFAULT_URL,
    Told,
    Url,
    bar,
    connect,
    counted,
    moment,
    note,
    telling,
    write,
    write_list,
)
from penstock.cli.queues import Name, app, limits_after
from penstock.core.queue.order.runs import NEVER
from penstock.errors import InvalidArgument, NotFound, PreconditionFailed
from penstock.records.compute import distinct_numbers
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.cli.republishing import Message
    from penstock.cli.taken import Evidence, Found, Removal
    from penstock.client import Client
    from penstock.core.state.lsns import Ints
    from penstock.history.view import View

TOGETHER = 1000
"""Messages whose bodies are in memory at once."""

FAR = 4096
"""LSNs that are read over before it is looked for the next one."""

COLUMNS = ("lsn", "time", "what", "by", "messages", "expired", "readable", "log", "archive", "backup")


@telling(app)
def recover(
    name: Name,
    lsn: Annotated[
        int | None, typer.Option("--lsn", min=1, help="What this record took, as the list names it.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --lsn: publish, and do not only count.")] = False,
    to: Annotated[str | None, typer.Option("--to", help="With --lsn: the queue that gets them, if another.")] = None,
    data: Annotated[str, typer.Option("--data", help="The data folder whose log knows, also of a server.")] = "./data",
    archive: ArchiveFolder = None,
    backup: Annotated[str | None, typer.Option("--backup", help="A backup of that log, made before.")] = None,
    vhost: Annotated[str | None, typer.Option("--vhost", help="The queue's vhost; by default that of the URL.")] = None,
    amqp: Annotated[str | None, typer.Option("--amqp", help="Where AMQP is, amqp://host:port.")] = None,
    url: Url = DEFAULT_URL,
) -> Told:
    """Publish again what a purge, a deletion of the queue or `message cancel` took.

    Without --lsn: which of them the log knows, how many messages each took, and where these can still be read.  With
    it: how many would be published, and with --yes they are, each once, however often the command runs.

    Example: penstock queue recover to-ship --data ./data
    Example: penstock queue recover to-ship --data ./data --lsn 1042 --yes
    """
    from penstock.cli.taken import Evidence, removals

    if lsn is None and (yes or to is not None):
        raise InvalidArgument("--yes and --to go with --lsn: name what to recover")
    url, vhost = _with_vhost(url, vhost)
    with closing(Evidence(data, archive, backup)) as evidence, bar("LSNs") as show:
        found = removals(evidence.stretches(), vhost, name, show, lsn)
        if not found.known and lsn is None:  # with an LSN nothing behind that is looked at
            raise NotFound(f"the log in {data} knows no queue '{name}' in vhost '{vhost}'{_since(found)}")
        bodies = Bodies(evidence)
        if lsn is None:
            return _list(found, bodies, name)
        if not found.removals:
            raise _nothing_there(evidence, found, name, lsn)
        return _recover(Recovery(found.removals[0], bodies, name, to or name, vhost), url, amqp, do=yes)


def _with_vhost(url: str, vhost: str | None) -> tuple[str, str]:
    """The address of a server in the vhost, and the vhost."""
    from urllib.parse import quote

    from penstock.client.urls import parse_urls

    named = parse_urls(url)[0].vhost
    if vhost is None or vhost == named:
        return url, named
    head, mark, query = url.partition("?")
    scheme, slashes, rest = head.rpartition("://")
    return f"{scheme}{slashes}{rest.partition('/')[0]}/{quote(vhost, safe='')}{mark}{query}", vhost


def _since(found: Found) -> str:
    """Of which LSNs nothing tells, if there are such."""
    if not found.unknown:
        return ""
    spans = " and ".join(f"{a:,} to {b - 1:,}" for a, b in found.unknown)
    return f", and nothing tells of LSNs {spans}: --archive or another --backup may"


def _nothing_there(evidence: Evidence, found: Found, name: str, lsn: int) -> NotFound | InvalidArgument:
    """Why nothing is recovered of this LSN."""
    if any(a <= lsn < b for a, b in found.unknown):
        return NotFound(f"what LSN {lsn} took is not known by the log{_since(found)}")
    row = next(evidence.here.batches(lsn, lsn + 1, ["kind", "name"]), None)
    if row is None:
        return NotFound(f"there is no record with LSN {lsn}; the last one is {evidence.here.durable}")
    kind, what = (cast("Any", row.column(column))[0].as_py() for column in ("kind", "name"))
    return InvalidArgument(
        f"LSN {lsn} took nothing from queue '{name}': it is a record {Kind(kind).name} of '{what}'; "
        f"penstock queue recover {name} lists those that did"
    )


class Bodies:
    """Where messages can still be read."""

    def __init__(self, evidence: Evidence) -> None:
        from penstock.history.view import View
        from penstock.log.name_index import Indexes

        here = evidence.here
        self.sources: list[tuple[str, View]] = [("log", here)]
        if here.archive is not None:
            alone = View(here.listed._replace(archive=None), here.catalog.segments, Indexes(evidence.disk))
            self.sources = [("log", alone), ("archive", here)]
        if evidence.before is not None:
            self.sources.append(("backup", evidence.before))

    def found(self, lsns: Ints) -> dict[str, Ints]:
        """By source, those of ascending LSNs that are read there."""
        import numpy as np

        out, missing = dict[str, "Ints"](), lsns
        for name, view in self.sources:
            out[name] = _there(view, missing)
            missing = np.setdiff1d(missing, out[name], assume_unique=True)
        return out

    def rows(self, lsns: Ints) -> dict[int, Mapping[str, Any]]:
        """What is stored of them, by LSN, as far as it is."""
        import numpy as np
        import pyarrow as pa

        from penstock.history.history import History

        names, out, missing = ("name", "properties", "body", "priority"), dict[int, Mapping[str, Any]](), np.sort(lsns)
        for _, view in self.sources:
            for batch in History(view, lambda: False).rows_at(_kept_by(view, missing)) if len(missing) else ():
                columns = [cast("Any", batch.column(one)).to_pylist() for one in ("lsn", *names)]
                ends = cast("Any", batch.column("expires_at")).cast(pa.int64()).to_pylist()
                for one, *values, end in zip(*columns, ends, strict=True):
                    out[one] = {**dict(zip(names, values, strict=True)), "expires_at": end}
            missing = missing[[one not in out for one in missing.tolist()]]
        return out


def _kept_by(view: View, lsns: Ints) -> Ints:
    """Those that an archive has not let go by its own retention."""
    return lsns if view.archive is None else lsns[lsns >= view.archive.manifest.pruned]


def _there(view: View, lsns: Ints) -> Ints:
    """Those of ascending LSNs whose messages a view has; no body is read for it."""
    import numpy as np

    from penstock.log.record_batches import column

    lsns = _kept_by(view, lsns)
    parts, at = [lsns[:0]], 0
    while at < len(lsns):
        rest = at
        for batch in view.outlines(int(lsns[at]), int(lsns[-1]) + 1):
            rows = column(batch, "lsn", "<i8")
            messages: Ints = rows[column(batch, "kind", "<i1") <= int(Kind.PUBLISH_TRANSIENT)]
            stop = int(np.searchsorted(lsns, int(rows[-1]), side="right"))
            parts.append(lsns[at:stop][np.isin(lsns[at:stop], messages)])
            at = stop
            if at == len(lsns) or lsns[at] > rows[-1] + FAR:
                break
        if at == rest:
            break
    return np.concatenate(parts)


class Figures(NamedTuple):
    """What one removal took."""

    messages: int
    expired: int
    readable: dict[str, int]  # by source, of those that have not expired

    @property
    def lost(self) -> int:
        """Messages that are nowhere any more."""
        return self.messages - self.expired - sum(self.readable.values())


def _figures(removals: Sequence[Removal], bodies: Bodies, now: int) -> list[Figures]:
    import numpy as np

    living = [np.sort(one.lsns[_lives(one, now)]) for one in removals]
    there = bodies.found(distinct_numbers(np.concatenate(living))) if living else {}
    return [
        Figures(len(one.lsns), len(one.lsns) - len(mine), {k: int(np.isin(mine, v).sum()) for k, v in there.items()})
        for one, mine in zip(removals, living, strict=True)
    ]


def _lives(one: Removal, now: int) -> Any:
    """Which of its messages would not have expired by now."""
    return (one.expires_at == 0) | (one.expires_at > now)


def _plain(one: Removal, figures: Figures) -> dict[str, object]:
    told = {"lsn": one.lsn, "time": one.time / 1e6, "what": one.what, "by": one.by, "messages": figures.messages}
    return {**told, "expired": figures.expired, "readable": sum(figures.readable.values()), **figures.readable}


def _list(found: Found, bodies: Bodies, name: str) -> Told:
    figures = _figures(found.removals, bodies, time.time_ns() // 1000)
    rows = [_plain(one, its) for one, its in zip(found.removals, figures, strict=True)]

    def show(facts: object) -> None:
        if rows:
            shown = [{**row, "time": moment(cast("float", row["time"]))} for row in rows]
            write_list(shown, [column for column in COLUMNS if column in rows[0]])
        else:
            write(f"nothing was purged, deleted or withdrawn from queue {name}")
        if since := _since(found):
            note(since.removeprefix(", and "))

    return rows, show


class Recovery(NamedTuple):
    """One removal, and where its messages go."""

    removal: Removal
    bodies: Bodies
    queue: str
    to: str
    vhost: str

    def messages(self, beyond: int, now: int) -> Iterator[tuple[Message, tuple[str, str, Sequence[str]]]]:
        """Those with a higher number that have not expired and can be read.  A number is the place in the queue."""
        import numpy as np

        from penstock.cli.republishing import Message

        one, place = self.removal, (self.vhost, self.exchange, ())
        left = np.flatnonzero(_lives(one, now) & (np.arange(len(one.lsns)) >= beyond))
        for start in range(0, len(left), TOGETHER):
            some = left[start : start + TOGETHER]
            rows = self.bodies.rows(one.lsns[some])
            for at in some.tolist():
                if (row := rows.get(lsn := int(one.lsns[at]))) is not None:
                    due = int(one.not_before[at])
                    yield Message(
                        lsn, at + 1, row["name"] or "", row["properties"], row["body"] or b"", row["expires_at"] or 0,
                        due if due > now else 0, row["priority"],
                    ), place  # fmt: skip

    @property
    def exchange(self) -> str:
        """Its name while they are published."""
        return f"recover-{self.origin:x}-{self.removal.lsn}"

    @property
    def origin(self) -> int:
        return self.bodies.sources[0][1].origin


def _recover(recovery: Recovery, url: str, amqp: str | None, *, do: bool) -> Told:
    now = time.time_ns() // 1000
    [figures] = _figures([recovery.removal], recovery.bodies, now)
    told = {"dry_run": not do, "queue": recovery.queue, "to": recovery.to, **_plain(recovery.removal, figures)}
    readable = sum(figures.readable.values())
    published = unroutable = 0
    if do:
        with connect(url) as client:
            published, unroutable = _published(recovery, client, amqp, now, readable)
    text = f"{counted(readable, 'message')} would be published to queue {recovery.to}: say --yes"
    if do:
        text = f"{counted(published, 'message')} published to queue {recovery.to}, all on disk"
        if before := readable - published - unroutable:
            text += f"\n{counted(before, 'message')} had been published before"

    def show(facts: object) -> None:
        write(text)
        for count, why in (
            (figures.expired, "left out: the time that they had is over"),
            (recovery.removal.elsewhere, "left out: other sites own them, and have them still"),
            (figures.lost, "in no segment of the log any more: an archive or an older backup may have them"),
            (unroutable, f"not stored: queue {recovery.to} does not take them, for its filter says so"),
        ):
            if count:
                note(f"{counted(count, 'message')} {why}")

    facts = {**told, "lost": figures.lost, "published": published, "unroutable": unroutable}
    return facts, show, typer.Exit(1) if figures.lost or unroutable else None


def _published(recovery: Recovery, client: Client, amqp: str | None, now: int, most: int) -> tuple[int, int]:
    """How many went out now, and how many of these the queue does not take.  most: that there may be."""
    from penstock.cli.republishing import Republisher

    publisher = f"recover {recovery.origin:x} {recovery.removal.lsn}"
    before = client.last_sequence(publisher)
    _check_target(recovery, client, max(most - before, 0), recovery.messages(before, now))
    published = unroutable = 0
    with suppress(NotFound):
        client.delete_exchange(recovery.exchange)  # of a run that was killed, perhaps bound to another queue
    client.declare_exchange(recovery.exchange, "fanout")
    client.bind(recovery.to, recovery.exchange)
    try:
        with closing(Republisher(client, amqp)) as sender, bar("messages") as show:
            for done in sender.publish(publisher, recovery.messages(before, now)):
                published, unroutable = published + done.published, unroutable + done.unroutable
                show(before + published + unroutable, len(recovery.removal.lsns))
    finally:
        client.delete_exchange(recovery.exchange)
    return published, unroutable


def _check_target(recovery: Recovery, client: Client, count: int, messages: Iterator[tuple[Message, object]]) -> None:
    """NotFound or PreconditionFailed for a queue that cannot take them all.

    messages: the same, whose bodies are read where the queue has a limit of bytes.
    """
    try:
        told = client.queue(recovery.to)
    except NotFound as error:
        raise NotFound(f"{error}: declare it first, or name another one with --to") from error
    settings = cast("Mapping[str, Mapping[str, object]]", told["settings"])
    if "dedup_window" in settings:
        raise PreconditionFailed(
            f"queue '{recovery.to}' lets no duplicates in for {settings['dedup_window']['value']}, and would take "
            "these for some: recover them to another queue with --to, and move them with penstock queue move"
        )
    limits = limits_after(recovery.to, settings, {})
    ring = cast("int", settings["ring_size"]["value"]) if "ring_size" in settings else NEVER
    room = min(ring, limits.length if limits.mode.drops_head else NEVER)
    head, tail = f"queue '{recovery.to}' keeps ", ": let it have more, or name another queue with --to"
    if limits.mode.drops_head and limits.size < NEVER:
        size = sum(len(message.body) for message, _ in messages)
        if size and told["ready_bytes"] + size > limits.size:
            raise PreconditionFailed(
                f"{head}{limits.size:,} bytes of ready messages and has {told['ready_bytes']:,}: with {size:,} bytes "
                f"more it would drop the oldest{tail}"
            )
    if count and (over := told["ready"] + count - room) > 0:
        raise PreconditionFailed(
            f"{head}{room:,} ready messages and has {told['ready']:,}: with {count:,} more it would drop the oldest "
            f"{over:,}{tail}"
        )
