"""A start: the core from its log, and the objects that the settings name.

Recovery order: fold what the log says, give the core its boot record, copy what was decided and is not copied, and only
then let anybody in.

Where the disk is full, room for the records of a start, and of the purge that may follow it, is made or waited for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from penstock.config.queue_arguments import GENERATED, why_impossible
from penstock.config.queue_settings import QUEUE_KEYS
from penstock.core.broker import Core
from penstock.core.commands.life import NOWHERE
from penstock.core.commands.queues import depth_of
from penstock.core.sizes import Sizes
from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold
from penstock.core.state.lsns import lengths, numbers, whole
from penstock.core.state.queue_state import living_pairs
from penstock.errors import ExpressionError, LogDamaged, Refused, SettingsError
from penstock.expr.view_definition import Definition, plan
from penstock.log.checkpoints import name_of
from penstock.log.mending import Watch, nobody
from penstock.log.segment import folder_origin, segment_name
from penstock.operations.queues import told_value
from penstock.records.chunks import Now
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings, parse_recovery_point, ruling_of, time_of
from penstock.server.asking.recovering import lsn_at
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.config.vhost_sections import ConflatedSection, ViewSection
    from penstock.config.vhost_sections import Queue as QueueSection
    from penstock.core.queue.queue import Queue
    from penstock.log.log import Log
    from penstock.ports import Clock, Disk
    from penstock.server.cluster.leading import Turn
    from penstock.server.engine import Engine
    from penstock.server.views.conflated import ConflatedDefinition
    from penstock.server.views.views import Views


@dataclass(frozen=True, slots=True)
class Recovered:
    core: Core
    records: int
    seconds: float
    clean: bool
    places: Mapping[int, int]  # what the log says of times that are new recovery points


def open_core(
    log: Log, clock: Clock, settings: Settings, *, watch: Watch = nobody, turn: Turn | None = None
) -> Recovered:
    """The core as the log says it was, with its boot record journalled but not yet durable.

    turn: of a cluster, of which this server is to lead a term.
    `watch` is told of the records folded, and of the stages after that.  Any thread, if it is the only one so far.
    """
    started = time.perf_counter()
    now = Now(max(clock.wall(), log.last_time()), clock.mono())
    state, records = fold(log, watch)
    log.mend()
    watch("queues", 0, 1)
    core = Core.restore(
        state, origin=log.origin, actions=settings.actions, instance=settings.server.name, now=now,
        refuse=why_impossible,
    )  # fmt: skip
    clean = log.recovery.clean
    if turn is None:
        core.boot(now, clean=clean, next_lsn=log.recovery.next_lsn)
    else:
        if log.recovery.last_lsn != turn.reign.before:
            raise LogDamaged(
                f"the log ends at LSN {log.recovery.last_lsn}, and its copy ended at LSN {turn.reign.before} as this "
                "member was elected for what it holds"
            )
        core.boot(now, clean=clean, next_lsn=turn.start, leads=turn.reign)
    places = {when: lsn_at(log, when) for when in new_times(core, settings)}
    return Recovered(core, records, time.perf_counter() - started, clean, places)


def new_times(core: Core, settings: Settings) -> set[int]:
    """Times (microseconds) from which queues that are there are now to take what the log has."""
    found = set[int | None]()
    for queue in settings.queue:
        present = core.find_queue(queue.vhost, queue.name)
        if present is not None and present.settings.recovery_point != queue.settings.recovery_point:
            found.add(time_of(queue.settings.recovery_point))
    return {when for when in found if when is not None}


def fold(log: Log, watch: Watch = nobody) -> tuple[DurableState, int]:
    """Durable state from the newest usable checkpoint and everything after it; and how many records that was."""
    start = log.start_state()
    folding = Fold(_decoded(*start)) if start is not None else Fold()
    records, total = 0, log.rows_to_replay()
    watch("folding", 0, total)
    for table in log.replay():
        folding.feed(table)
        records += table.num_rows
        watch("folding", records, max(total, records))
    state = folding.finish()
    _check_front(log, state)
    if not state.measured:
        measure(log, state)
    return state, records


def _decoded(kind: str, lsn: int, state: bytes) -> DurableState:
    """What a start begins with.  LogDamaged names it where it is none: its sum may be right all the same."""
    try:
        return DurableState.decode(state)
    except ValueError as error:
        if kind == "checkpoint":
            way = f"{name_of(lsn)} cannot be used: {error}; move it away, without it the same state comes of the log"
        else:
            way = f"the base of the state below LSN {lsn} in the log cannot be used: {error}"
        raise LogDamaged(way) from error


def measure(log: Log, state: DurableState) -> None:
    """Read the sizes of what waits from the log: an earlier version wrote the checkpoint, the base or a record."""
    state.sizes = Sizes()
    for batch in log.batches(log.first_lsn, state.last_lsn + 1, ("lsn", "kind", "body"), around=True):
        table = whole(batch)
        kinds = numbers(table, "kind")
        messages = (kinds == int(Kind.PUBLISH)) | (kinds == int(Kind.PUBLISH_TRANSIENT))
        state.sizes.add_rows(numbers(table, "lsn")[messages], lengths(table, "body")[messages])
    state.sizes = state.sizes.only(living_pairs(state.queues.values()))
    state.measured = True


def _check_front(log: Log, state: DurableState) -> None:
    """LogDamaged when a message waits that is older than the log: no segment goes before the last of its messages.

    A base covers the state that the first segments held, so that nothing else shows that they are missing.
    """
    for queue in state.queues.values():
        oldest = min((chunk[0] for chunk in queue.waiting if len(chunk)), default=log.first_lsn)
        if oldest < log.first_lsn:
            raise LogDamaged(
                f"segments before {segment_name(log.first_lsn)} are missing: LSN {oldest} waits in queue "
                f"{queue.name!r} of vhost {queue.vhost!r}"
            )
    for sow in state.sows.values():
        oldest = min(sow.lsns, default=log.first_lsn)
        if oldest < log.first_lsn:
            raise LogDamaged(
                f"segments before {segment_name(log.first_lsn)} are missing: LSN {oldest} is the present record of a "
                f"key of topic {sow.name!r} in vhost {sow.vhost!r}"
            )


def finish_decided(engine: Engine, disk: Disk) -> int:
    """Copy what an earlier process had decided and not copied; how many batches.  Before any door opens.

    Errors as `server.flight.decided.finishing`.
    """
    batches = len(engine.core.decided)
    for _ in finishing_decided(engine, disk):
        pass
    return batches


def finishing_decided(engine: Engine, disk: Disk) -> Iterator[tuple[int, int]]:
    """The same in steps: (rows copied, of how many) after each."""
    if engine.core.decided:
        from penstock.server.flight import decided  # with pyarrow's Flight, which few starts need so early

        yield from decided.finishing(engine, disk)


Refuse = Callable[[SettingsError], object]
"""Told of one thing that the settings name and the core refuses, with its place; the others are applied."""


def end(error: SettingsError) -> NoReturn:
    """Nothing else of the settings is applied."""
    raise error


def apply_settings(
    core: Core,
    settings: Settings,
    now: Callable[[], Now],
    places: Mapping[int, int] = NOWHERE,
    refuse: Refuse = end,
) -> list[str]:
    """Declare what the settings name; what exists already takes the settings' values.

    places: what the log says of times that are new recovery points, see `new_times`; others are read here.
    refuse: what becomes of a thing that is refused: a binding from an exchange that is nowhere, for one.
    Returns what whoever starts the server has to know: of each queue that is altered, what, and what left it by that.
    """
    core.expire_publishers(now(), settings.log.publisher_expiration)
    core.rule_by_file(
        now(),
        [one.policy() for one in (*settings.policy, *settings.operator_policy)],
        [one.setting() for one in settings.address],
    )
    placed = partial(_placed, settings, refuse)
    _declare_exchanges(core, settings, now, placed)
    for index, topic in enumerate(settings.topics):
        with placed("topic", index, topic.name):
            core.declare_topic(now(), topic.vhost, topic.exchange, topic.name, topic.declared())
    told = _declare_queues(core, settings, now, places, placed)
    _bind(core, settings, now, placed)
    return told


def apply_or_leave_out(
    core: Core, settings: Settings, now: Callable[[], Now], places: Mapping[int, int] = NOWHERE, *, member: bool = False
) -> tuple[list[str], list[str]]:
    """The same where the log may have a thing otherwise, as clients may have declared it anew: that keeps no server
    from its start.  What to report, and what is left out.

    member: of a cluster, where somebody has to lead whatever the file says.  Otherwise SettingsError for what no start
    would take: what is wrong in the settings themselves.
    """
    refused = list[SettingsError]()
    told = apply_settings(core, settings, now, places, refused.append)
    if refused:
        if not member:
            try_settings(settings)
        told += [f"warning: {error}: what was there before holds" for error in refused]
    return told, [str(error) for error in refused]


Placed = Callable[[str, int, str], AbstractContextManager[None]]


def _declare_exchanges(core: Core, settings: Settings, now: Callable[[], Now], placed: Placed) -> None:
    for index, exchange in enumerate(settings.exchange):
        with placed("exchange", index, exchange.name):
            core.declare_exchange(
                now(),
                exchange.vhost,
                exchange.name,
                exchange.type,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=dict(exchange.arguments),
                passive=False,
            )


def _declare_queues(
    core: Core, settings: Settings, now: Callable[[], Now], places: Mapping[int, int], placed: Placed
) -> list[str]:
    """Declare those that are not there, alter those that are; what of each is another, and what left it by that."""
    told = list[str]()
    present_queues = {(queue.vhost, queue.name): queue for queue in core.queues()}
    for index, queue in enumerate(settings.queue):
        present = present_queues.get((queue.vhost, queue.name))
        with placed("queue", index, queue.name):
            if present is not None:
                before, waiting = present.settings.recovery_point, depth_of(present)
                own = _own(present)
                left = core.alter_queue(now(), present, queue.settings, queue.given, places)
                told += (*_altered(present, own), *_other_life(queue, present))
                if left:
                    told.append(_left_behind(present, before, left, waiting))
            else:
                core.declare_queue(
                    now(),
                    queue.vhost,
                    queue.name,
                    queue.settings,
                    durable=queue.durable,
                    auto_delete=queue.auto_delete,
                    arguments=dict(queue.arguments),
                    given=queue.given,
                    server_named=queue.name.startswith(GENERATED),
                )
    return told


def _bind(core: Core, settings: Settings, now: Callable[[], Now], placed: Placed) -> None:
    for index, binding in enumerate(settings.binding):
        with placed("binding", index, f"{binding.source} -> {binding.destination}"):
            core.bind(
                now(),
                binding.vhost,
                binding.source,
                binding.destination,
                binding.destination_type,
                binding.key,
                dict(binding.arguments),
            )


def _own(queue: Queue) -> QueueSettings:
    """Its own settings, whatever policies make of them."""
    return ruling_of(queue.settings, queue.ruling).own


def _altered(queue: Queue, before: QueueSettings) -> Iterator[str]:
    """A line for what the settings file has made another, as a command may have altered what it takes back."""
    after = _own(queue)
    changed = [name for name in QUEUE_KEYS if getattr(after, name) != getattr(before, name)]
    if words := [
        f"{name} = {told_value(name, getattr(after, name))}, and was {told_value(name, getattr(before, name))}"
        for name in changed
        if name != "recovery_point"  # `_left_behind` tells of it
    ]:
        yield f"queue '{queue.name}' in vhost '{queue.vhost}' by the settings file: {'; '.join(words)}"


def _other_life(asked: QueueSection, present: Queue) -> Iterator[str]:
    """A line for what it is and the settings file has otherwise: no refusal, a client may have declared it since."""
    where = f"queue '{present.name}' in vhost '{present.vhost}'"
    for name in ("durable", "auto_delete"):
        there, wanted = (told_value(name, getattr(one, name)) for one in (present, asked))
        if there != wanted:
            yield f"{where} has {name} = {there}, and not {wanted} as in the settings file: it comes with the declare"


def _left_behind(queue: Queue, before: str, left: int, waiting: int) -> str:
    point = queue.settings.recovery_point
    return (
        f"queue '{queue.name}' in vhost '{queue.vhost}': its recovery_point is {point}, and was {before}: {left} of "
        f"its {waiting} messages came before that and have left it; the log keeps them"
    )


@contextmanager
def _placed(settings: Settings, refuse: Refuse, section: str, index: int, name: str) -> Generator[None]:
    """What the core refuses is told with the place in the settings."""
    try:
        yield
    except Refused as error:
        keys = (".name", ".source", ".vhost", "")  # a file without lines has a place for the whole table
        origins = (settings.origin(f"{section}.{index}{key}") for key in keys)
        origin = next((origin for origin in origins if origin != "default"), "settings")
        told = SettingsError(f'{origin}: [[{section}]] "{name}": {error}')
        told.__cause__ = error
        refuse(told)


def try_settings(settings: Settings) -> bool:
    """What `apply_settings` would do at the first start in an empty folder, but for bookmarks, which are of a log.

    They are held against the data folder's own.  False: there is none yet, so that they were held against each other.
    SettingsError for the first thing that is refused.
    """
    now = Now(0, 0)
    known = folder_origin(Path(settings.server.data))
    points = [parse_recovery_point(queue.settings.recovery_point) for queue in settings.queue]
    bookmarks = [point.origin for point in points if point.kind == "lsn"]
    origin = known if known is not None else next(iter(bookmarks), 1)
    core = Core.restore(
        DurableState(), origin=origin, actions=settings.actions, instance=settings.server.name, now=now,
        refuse=why_impossible,
    )  # fmt: skip
    core.boot(now, clean=True, next_lsn=1)
    apply_settings(core, settings, lambda: now)
    return known is not None or not bookmarks


logger = logging.getLogger("penstock.server")

ROOM = 1 << 20
"""Bytes that a start asks for: its own records take a few kilobytes, acks and a base what is left."""

DERIVED = ("paged", "checkpoints", "index")
"""Folders of the data folder that only save time; the last ones cost the next start some."""

WAIT_S = 0.5

Pause = Callable[[float], object]


def make_room(log: Log, pause: Pause, watch: Watch = nobody, wanted: int = ROOM) -> None:
    """Return when the log can write so many bytes.  Before it is mended or appended to; any thread.

    `watch` is told of each look and may raise to end the waiting.  OSError for a disk that does not work.
    """
    wanted = min(wanted, log.settings.low_space)  # 0: the disk is not asked
    if log.room.left() >= wanted:
        return
    freed = _drop_derived(log.disk)
    if freed:
        logger.warning("the disk is full: %d files that can be made again were removed to start at all", freed)
    told = False
    while (left := log.room.left()) < wanted:
        if not told:
            logger.warning(
                "the disk of the data folder has %s left; the start goes on when there is %s: free some space there",
                format_size(left), format_size(wanted),
            )  # fmt: skip
            told = True
        watch("room", 0, 1)
        pause(WAIT_S)
    if told:
        watch("room", 1, 1)


def _drop_derived(disk: Disk) -> int:
    """Remove the files of these folders; how many."""
    count = 0
    for folder in DERIVED:
        for name in disk.list(folder):
            disk.remove(f"{folder}/{name}")
            count += 1
        if count:
            disk.sync_folder()
    return count


def definition_of(section: ViewSection) -> Definition:
    """The definition that a `[[view]]` is."""
    return Definition(
        name=section.name,
        source=section.source or "",
        select=section.select,
        group_by=section.group_by,
        filter=section.filter,
        vhost=section.vhost,
        conflation=section.conflation,
        join=section.join,
        null_equivalency=section.join_null_equivalency,
    )


def conflated_of(section: ConflatedSection) -> ConflatedDefinition:
    """The definition that a `[[conflated_topic]]` is."""
    from penstock.server.views.conflated import ConflatedDefinition

    return ConflatedDefinition(
        name=section.name,
        source=section.source,
        interval=section.interval,
        filter=section.filter,
        vhost=section.vhost,
    )


def declare_views(views: Views, settings: Settings) -> None:
    """All views, then all conflated topics, in the order of the file.  SettingsError names one that cannot be read."""
    for view in settings.view:
        try:
            if view.engine == "spark":
                plan(definition_of(view))  # a topic with a key, whose rows Spark writes
                continue
            views.add(definition_of(view))
        except ExpressionError as error:
            raise SettingsError(f'[[view]] "{view.name}": {error.pointed()}') from error
    for topic in settings.conflated_topic:
        try:
            views.add_conflated(conflated_of(topic))
        except ExpressionError as error:
            raise SettingsError(f'[[conflated_topic]] "{topic.name}" filter: {error.pointed()}') from error
    views.rows_published.look()


def unreadable(settings: Settings) -> list[tuple[int, ExpressionError]]:
    """Views whose expressions cannot be used, by their number in the settings: for who checks without starting."""
    found: list[tuple[int, ExpressionError]] = []
    for number, view in enumerate(settings.view):
        try:
            plan(definition_of(view))
        except ExpressionError as error:
            found.append((number, error))
    return found
