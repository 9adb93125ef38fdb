"""Makes a data folder in which all that the log can say has been said, to be kept and opened for ever.

    PYTHONPATH=src:tests python -m golden tests/data/log_v1_NAME.tar.xz

NAME is a new one: what was kept before is opened for ever, and is not written over.  A broker has a queue for each set
of options of a covering array, filled and used as where looking is tested (`property.test_looking`); beside them
everything that writes a record of a kind of its own.  Then the power fails.  What the folder holds is kept with it, as
it was found when it was made: `expected.json`.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from looking import Looker
from penstock.core.commands.deliveries import Delivery
from penstock.core.effects import Verb
from penstock.core.links.ownership import Claim
from penstock.core.links.sharing import Site
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold
from penstock.core.state.lsns import flat
from penstock.core.state.pending import DecidedPart
from penstock.core.streams import Link, sinks
from penstock.core.streams.sinks import Batch
from penstock.errors import PenstockError
from penstock.log.log import Log
from penstock.log.simdisk import SimDisk
from penstock.memory.slab import Piece
from penstock.records.entries import Publishes
from penstock.records.kinds import Kind
from penstock.records.properties import Properties, encode
from penstock.records.queue_settings import Policy
from penstock.server.gates import Receiver
from penstock.testing import Broker
from penstock.testing.instance import FakeClock as Time
from penstock.testing.instance import Instance
from property.queue_options import covering
from property.test_looking import Case, config, publish, use
from sim.logkit import SMALL, FakeClock

MADE = 1_790_000_000_000_000
"""When: microseconds since the epoch."""

DURABLE, PASSING = (encode(Properties(delivery_mode=mode)) for mode in (2, 1))

SETS = covering(7, 24)
"""Of options; which ones is of no account once the folder is there."""


def settings(cases: list[Case], *, queues: bool = True) -> dict[str, object]:
    """The broker's, with what is beside the queues of the cases."""
    found: dict[str, Any] = config(cases, queues=queues)
    found["topic"] += [{"name": "present", "key": ["/id"]}, {"name": "acted"}]
    found["queue"] += [
        {"name": "s"}, {"name": "narrowed", "max_deliveries": 2}, {"name": "once", "dedup_window": "1h"},
        {"name": "deferring", "deferred_ack_expiration": "1h"},
    ]  # fmt: skip
    found["action"] = [
        {"name": "copy", "on": [{"event": "publish", "topic": "acting"}], "do": [{"publish": {"topic": "acted"}}]}
    ]
    found["address"] = [{"pattern": "elsewhere", "default_ring_size": 700}]
    found["log"] = {"segment": "64KiB"}
    return found


class Nobody(Receiver):
    """Takes deliveries and does nothing with them."""

    gate: object = None
    full = False

    def deliver(self, effect: Delivery, piece: Piece) -> None: ...
    def cancelled(self, consumer: Consumer, why: PenstockError) -> None: ...


def batch(instance: Instance, topic: str, *bodies: bytes, header: bytes = DURABLE) -> Publishes:
    return Publishes(instance.core.topic("/", "", topic), header, list(bodies))


def beside(instance: Instance) -> None:
    """What no queue's options ask for."""
    core, engine = instance.core, instance.engine

    def done() -> None:
        instance.run_turns()
        instance.make_durable()

    core.declare_exchange(engine.now(), "/", "gone", "fanout")
    core.declare_exchange(engine.now(), "/", "bound", "fanout")
    core.bind(engine.now(), "/", "bound", "s", "queue", "")
    core.bind(engine.now(), "/", "bound", "narrowed", "queue", "")
    core.unbind(engine.now(), "/", "bound", "narrowed", "queue", "")
    core.delete_exchange(engine.now(), "/", "gone")
    core.declare_topic(engine.now(), "/", "", "short-lived", {})
    core.delete_topic(engine.now(), "/", "", "short-lived")
    core.delete_queue(engine.now(), core.declare_queue(engine.now(), "/", "short-lived", core.queue("/", "s").settings))
    for name in ("keep", "drop"):
        core.set_policy(engine.now(), Policy("/", name, "^narrowed$", {"max-length": 900}))
    core.delete_policy(engine.now(), "/", "drop")
    core.publish(engine.now(), batch(instance, "s", *(b'{"n": %d}' % n for n in range(20))))
    core.publish(engine.now(), batch(instance, "s", b"passing", header=PASSING))
    core.publish(engine.now(), batch(instance, "acting", b'{"n": 1}'))
    core.publish(engine.now(), batch(instance, "narrowed", *(b'{"n": %d}' % n for n in range(8))))
    core.publish(engine.now(), batch(instance, "s", b'{"p": 1}'), publisher="p", sequence=3)
    core.publish(engine.now(), batch(instance, "s", b'{"p": 2}'), publisher="gone", sequence=1)
    done()
    core.expire_publishers(engine.now(), 0)
    # streams: one in mode queue whose batch is read in vain, one in mode log
    epoch = core.streams.open(engine.now(), "vain", core.queue("/", "narrowed")).epoch
    core.streams.plan(engine.now(), "vain", epoch, 0, 8)
    core.streams.poison.read("vain", 1, 0, Link(1, "query", 1))
    done()
    for _ in range(4):
        epoch = core.streams.open(engine.now(), "vain", core.queue("/", "narrowed")).epoch
        resumed = core.streams.poison.resume(engine.now(), "vain", epoch, 1, 2)
        core.streams.poison.read("vain", 1, resumed.revision, Link(1, "query", 1))
        done()
    epoch = core.streams.open(engine.now(), "settled", core.queue("/", "s")).epoch
    core.streams.plan(engine.now(), "settled", epoch, 0, 4)
    core.streams.plan(engine.now(), "settled", epoch, 1, 4)
    done()
    core.streams.release(engine.now(), "vain")
    epoch = core.streams.open(engine.now(), "following", None, mode="log", asked={"topic": "present"}).epoch
    core.streams.ranges.begin(engine.now(), "following", epoch, "epoch", 0)
    core.streams.release(engine.now(), "following", abandoned=True)
    core.streams.ranges.known(engine.now(), "following", epoch, 0)
    # acks of messages that another instance has
    deferring = core.queue("/", "deferring")
    core.acknowledge(engine.now(), deferring, {9: range(5, 9)}, Verb.ACK, client="c")
    first = core.publish(engine.now(), batch(instance, "deferring", b"5", b"6")).first
    core.appeared(engine.now(), deferring, 9, range(5, 7), range(first, first + 2))
    # messages that other sites own, and one that came from there
    shared = core.declare_queue(engine.now(), "/", "shared", core.queue("/", "s").settings)
    core.publish(engine.now(), batch(instance, "shared", *(b'{"n": %d}' % n for n in range(6))))
    for name, origin in (("here", core.origin), ("there", core.origin + 1)):
        core.meet(engine.now(), Site(name, origin, "east"))
    first = shared.floor()
    core.own(engine.now(), shared, [(first, first + 2)], Claim("there"))
    core.own(engine.now(), shared, [(first + 1, first + 3)], Claim("there", 1, "transfer"))
    core.own(engine.now(), shared, [(first + 2, first + 3)], Claim("here", 2, "proxied"))
    came = batch(instance, "shared", b'{"c": 1}', b'{"c": 2}', b'{"c": 3}')
    core.settled_at(engine.now(), shared, "here", [(core.origin + 1, 41, 42)])
    core.each_owned_at(engine.now(), shared, "here", [([(core.origin + 1, 45, 47)], Claim("here", 1, "transfer"))])
    core.carry(engine.now(), [core.origin + 1], came, [40, 41, 45], {shared: "there"})
    core.publish(engine.now(), batch(instance, "shared", b'{"p": 4}', b'{"p": 5}'), publisher="p", sequence=4)
    core.note_link(engine.now(), "there", heard=46, acked=3, paused=True)
    core.forget_carried(engine.now(), "there", shared.floor() + 8)
    core.proxy(engine.now(), shared, True, by="ann")
    done()
    # deliveries to several clients, and acks of several, each of which is one record; some hold theirs still
    several = core.declare_queue(engine.now(), "/", "several", core.queue("/", "s").settings)
    work: list[tuple[Consumer, list[int]]] = []
    for name in ("ann", "bob", "ann"):
        worker = core.subscribe(engine.now(), several, tag="w", holder=Nobody(), client=name, max_backlog=3)
        work.append((worker, []))
    first = core.publish(engine.now(), batch(instance, "several", *(b'{"n": %d}' % n for n in range(9)))).first
    for worker, mine in work:
        mine += [lsn for lsn in range(first, first + 9) if len(worker.leases.holding(range(lsn, lsn + 1), attempt=1))]
    done()
    for some in ([(worker, mine[:2]) for worker, mine in work], [(worker, mine[2:]) for worker, mine in work[1:2]]):
        chunks = [(worker, [range(lsn, lsn + 1) for lsn in lsns]) for worker, lsns in some]
        core.settle_several(engine.now(), several, chunks)
    # sinks
    core.sink_commit(engine.now(), Batch("sink", 0, lineage={"pipeline": "p"}), [batch(instance, "s", b'{"x": 1}')])
    core.sink_decide(engine.now(), Batch("large", 0), [DecidedPart("0" * 32, 3, 30, 1, "s", "", "/")])
    core.sink_copy(engine.now(), "large", 2, [batch(instance, "s", b'{"x": 2}', b'{"x": 3}')])
    core.sink_copy(engine.now(), "large", 1, [batch(instance, "s", b'{"x": 4}')])
    with patch.object(sinks, "KEPT", 3), patch.object(sinks, "AT_ONCE", 5):
        for number in range(8):
            core.sink_commit(engine.now(), Batch(f"query {number}", 0), [batch(instance, "s", b"{}")])
    # queues that no route names, for the table is full
    core._interning._routes_max = 0
    core.bind(engine.now(), "/", "bound", "elsewhere", "queue", "")
    core.publish(engine.now(), Publishes(core.topic("/", "bound", "k"), DURABLE, [b'{"took": 1}', b'{"took": 2}']))
    done()


def facts(state: DurableState) -> dict[str, Any]:
    """A durable state in plain values: what a reader of any later version has to find."""
    return {
        "last_lsn": state.last_lsn,
        "exchanges": sorted(f"{vhost}|{name}|{one.type}" for (vhost, name), one in state.exchanges.items()),
        "bindings": sorted([one.source, one.destination, one.destination_type, one.key] for one in state.bindings),
        "topics": sorted(map(str, state.topics)),
        "publishers": state.publishers,
        "sinks": state.sinks,
        "streams": sorted([name, one.mode, one.epoch, one.floor, one.planned] for name, one in state.streams.items()),
        "queues": {
            one.name: {
                "waiting": sorted(flat(one.waiting).tolist()),
                "columns": {name: list(runs) for name, runs in sorted(one.columns.items())},
                "paused": one.paused > 0,
            }
            for one in state.queues.values()
        },
    }


def log_of(disk: SimDisk) -> Log:
    """The log on a disk."""
    return Log.open(disk, FakeClock(), SMALL)


def folded(log: Log) -> DurableState:
    """The durable state that a start finds."""
    start = log.start_state()
    fold = Fold(DurableState.decode(start[2])) if start is not None else Fold()
    for table in log.replay():
        fold.feed(table)
    return fold.finish()


def opened(files: dict[str, bytes]) -> tuple[Log, DurableState]:
    """A log of these files, and what it says."""
    log = log_of(SimDisk(files))
    return log, folded(log)


def kinds(log: Log) -> set[Kind]:
    """What its records say."""
    found = set[int]()
    for one in log.batches(0, 1 << 60, ["kind"]):
        found.update(one.column("kind").to_pylist())
    return {Kind(number) for number in found}


def stands(broker: Broker) -> dict[str, dict[str, list[int]]]:
    """Of every queue its messages by state."""

    def work(instance: Instance) -> dict[str, dict[str, list[int]]]:
        out: dict[str, dict[str, list[int]]] = {}
        for queue in instance.core.queues():
            mine = out[queue.name] = dict[str, list[int]]()
            for place in queue.places():
                lsns = [lsn for chunk in place.chunks() for lsn in chunk]
                mine[place.state] = sorted([*mine.get(place.state, []), *lsns])
        return out

    return broker.command(work)


def make() -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of a folder, and what they hold."""
    cases = [Case(number, options) for number, options in enumerate(SETS)]
    with Broker(settings(cases, queues=False), clock=Time(MADE)) as broker:
        for case in cases:
            if "recovery_point" in case.options:
                publish(broker, case, range(2))
        broker.restart(settings(cases))
        with Looker(broker) as looker:
            for case in cases:
                use(broker, looker, case)
            looker.client.publish("present", b'{"id": 1, "v": 1}')
            looker.client.publish("present", b'{"id": 2, "v": 1}')
            looker.client.sow_delete("present", filter="/id = 1")
        broker.command(beside)
        with broker.transaction() as together:
            together.publish("s", b'{"t": 1}')
            together.publish("elsewhere", b'{"t": 2}')
        scheduled = broker.publish("elsewhere", b"{}", delay=600)
        broker.reschedule_message(scheduled, 900)
        broker.advance(1)
        wall = broker.clock.wall()
        files = {name: data for name, data in broker.disk.files().items() if name.endswith((".arrows", ".state"))}
    log, state = opened(files)
    told = kinds(log)
    missing = sorted(kind.name for kind in set(Kind) - told)
    sys.stderr.write(f"{len(files)} files, {sum(map(len, files.values())):,} bytes; without {', '.join(missing)}\n")
    with Broker(settings(cases), disk=SimDisk(files), clock=Time(wall)) as again:
        found = stands(again)
    return files, {
        "kinds": sorted(kind.name for kind in told),
        "options": {number: case.options for number, case in enumerate(cases)},
        "state": facts(state),
        "stands": found,
        "wall": wall,
    }


def read(path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """A folder that was kept, and what it holds."""
    with tarfile.open(path, "r:xz") as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    return files, json.loads(files.pop("expected.json"))


def keep(path: Path) -> None:
    """Make one and keep it.  FileExistsError for a path that is there."""
    if path.exists():
        raise FileExistsError(f"{path} was kept by an older version: take another name")
    files, expected = make()
    files["expected.json"] = json.dumps(expected, indent=1, sort_keys=True).encode()
    with tarfile.open(path, "w:xz") as archive:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
