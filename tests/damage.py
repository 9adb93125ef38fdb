"""Data folders with every kind of file, ways to damage them, and the verdict on what a start makes of it.

A folder is made by the interleaving simulator, whose chains leave closed, compacted and open segments, indexes, bases,
checkpoints and cut tails; a stage is added.  What must come back is known from the simulator's judge.  Used on real
files and on a simulated disk alike.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pyarrow as pa

from penstock.core.state.durable import DurableState, canonical
from penstock.errors import PenstockError
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.segment import read_header
from penstock.log.simdisk import SimDisk
from penstock.ports import Disk
from penstock.server.flight.sink_stages import Stages
from penstock.server.flight.stage_files import StageInfo
from penstock.server.opening import fold
from penstock.testing.instance import FakeClock
from penstock.wire.flight.received import Bounds
from sim.interleave import Chain, simulated_threads
from sim.judge import T0, compare
from sim.upkeep_house import House

STAGE = pa.table({"body": [b"staged %d" % n for n in range(50)]})


@dataclass(frozen=True)
class Folder:
    """The files of a data folder, and what is in its queues."""

    files: Mapping[str, bytes]
    state: DurableState
    bodies: Mapping[int, bytes]
    stage: str
    clean: bool
    last: int
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def queues(self) -> dict[str, list[int]]:
        """LSNs that wait, by queue."""
        return {
            queue.name: sorted(lsn for chunk in queue.waiting for lsn in chunk)
            for queue in self.state.queues.values()
            if len(queue.waiting)
        }


def kind_of(name: str, files: Mapping[str, bytes]) -> str:
    """Which kind of file this is.  KeyError for one that the menu has no row for: add it."""
    folder, _, stem = name.rpartition("/")
    if folder == "log" and stem.endswith(".arrows"):
        segments = sorted(one for one in files if one.startswith("log/") and one.endswith(".arrows"))
        disk = SimDisk({name: files[name]})
        if name == segments[-1]:
            return "open segment"
        return "compacted segment" if read_header(disk.open(name))[0].generation else "closed segment"
    return {
        ("log", "reserve"): "reserve",
        ("log", "rewrite"): "unfinished rewriting",
        ("checkpoints", "state"): "checkpoint",
        ("checkpoints", "new"): "unfinished checkpoint",
        ("index", "names"): "index",
        ("index", "new"): "unfinished index",
        ("stage", "arrows"): "stage",
        ("", "lock"): "lock",
    }.get((folder, stem.rpartition(".")[2]), "cut tail" if folder == "cut" else "") or _unknown(name)


def _unknown(name: str) -> str:
    raise KeyError(f"{name}: a file of a kind that the menu of damage does not know")


FOUND = {True: 4, False: 7}
"""The chain that had every kind of file when it was looked for last, and was stopped in peace, or not."""


@cache
def built(clean: bool) -> Folder:
    """A folder with every kind of file; `clean`: stopped in peace, else killed."""
    for seed in (FOUND[clean], *range(1, 400)):
        chain = Chain(seed)
        with simulated_threads():
            for life in range(10):
                chain.live(end="" if life < 9 else "close" if clean else "kill")
        files = chain.disk.files()
        opened = Log.open(SimDisk(files), FakeClock(T0), House.log_settings())
        is_clean, last = opened.recovery.clean, opened.durable
        state = canonical(fold(opened)[0])
        waiting = sum(len(chunk) for queue in state.queues.values() for chunk in queue.waiting)
        kinds = [kind_of(name, files) for name in files]
        wanted = {"closed segment", "compacted segment", "open segment", "checkpoint", "index"}
        if is_clean == clean and wanted <= set(kinds) and kinds.count("checkpoint") == 2 and waiting >= 8:
            disk = SimDisk(files)
            stages = Stages(disk, FakeClock(T0), Bounds())
            stem = stages.keep(StageInfo("query", 1, 0, 0, "a", "", "/", T0), STAGE.schema, iter(STAGE.to_batches()))
            files = {**disk.files(), "lock": b"1\n"}
            bodies = {lsn: chain.judge.bodies[lsn] for lsns in _waiting(state) for lsn in lsns}
            return Folder(files, state, bodies, f"stage/{stem}.arrows", clean, last)
    raise AssertionError("no chain left every kind of file")


def _waiting(state: DurableState) -> list[Sequence[int]]:
    return [chunk for queue in state.queues.values() for chunk in queue.waiting]


def spread(files: Mapping[str, bytes], folder: Path) -> OsDisk:
    """The files as real ones."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return OsDisk(folder)


def gathered(folder: Path) -> dict[str, bytes]:
    """Real files as a mapping."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@dataclass
class Verdict:
    """What a start made of a damaged folder."""

    refused: str = ""  # the sentence
    lost_tail: int = 0  # messages that were cut as an unfinished write
    unreadable: dict[str, str] = field(default_factory=dict[str, str])  # by queue: the sentence
    warnings: list[str] = field(default_factory=list[str])
    stage: str = ""  # why the stage cannot be committed


def start(disk: Disk, folder: Folder) -> Verdict:
    """Open, fold, and read everything that waits, queue by queue.  AssertionError for a wrong row or state."""
    out = Verdict()
    try:
        log = Log.open(disk, FakeClock(T0), House.log_settings(), mends=False)
    except PenstockError as error:
        out.refused = str(error)
        return out
    try:
        try:
            state = canonical(fold(log)[0])
        except PenstockError as error:
            out.refused = str(error)
            return out
        log.mend()
        out.warnings = log.recovery.warnings
        if log.durable == folder.last:
            compare(state, folder.state)
        else:
            assert not folder.clean, "a folder that was stopped in peace has no unfinished write"
            assert log.recovery.cut_bytes, f"the log ends at {log.durable} instead of {folder.last} and nothing was cut"
        for name, lsns in folder.queues().items():
            wanted = [lsn for lsn in lsns if lsn <= log.durable]
            out.lost_tail += len(lsns) - len(wanted)
            try:
                rows = log.read(wanted)
            except PenstockError as error:
                out.unreadable[name] = str(error)
                continue
            assert rows.lsns == wanted, f"{name} lacks {sorted(set(wanted) - set(rows.lsns))}"
            assert rows.bodies == [folder.bodies[lsn] for lsn in wanted], f"{name} has a changed message"
        _look_at_stages(disk, folder, out)
    finally:
        log.close(clean=False)
    return out


def _look_at_stages(disk: Disk, folder: Folder, out: Verdict) -> None:
    """What a commit of the stage would find: its rows as they were written, or an error."""
    stages = Stages(disk, FakeClock(T0), Bounds())
    stem = folder.stage.rpartition("/")[2].removesuffix(".arrows")
    try:
        uploads = stages.uploads(stages.find("query", 1, [stem]))
    except PenstockError as error:
        out.stage = str(error)
    else:
        assert [bytes(body) for _, upload in uploads for body in upload.bodies] == STAGE["body"].to_pylist()


def segment_of(lsn: int, names: Sequence[str]) -> str:
    """The file that has an LSN."""
    return max(name for name in names if int(name[4:24]) <= lsn)


def judged(
    before: Mapping[str, bytes], after: Mapping[str, bytes], damaged: str, folder: Folder, verdict: Verdict
) -> None:
    """What must be true of any start on a damaged folder."""
    kept = {name: data for name, data in before.items() if name not in ("lock", "log/reserve")}
    for said in (verdict.refused, *verdict.unreadable.values()):
        assert "\n" not in said, f"more than a sentence: {said}"
    if verdict.refused:
        now = {name: data for name, data in after.items() if name not in ("lock", "log/reserve")}
        assert now == kept, f"a refused start has changed {sorted(_differing(kept, now))}"
        assert any(part in verdict.refused for part in ("log/", "checkpoints/")), f"names no file: {verdict.refused}"
        return
    _nothing_deleted(kept, after, damaged)
    segments = [name for name in folder.files if name.startswith("log/") and name.endswith(".arrows")]
    for queue, said in verdict.unreadable.items():
        assert damaged in said, f"{queue} cannot be read, and {damaged} is not named: {said}"
        touched = {segment_of(lsn, segments) for lsn in folder.queues()[queue]}
        assert damaged in touched, f"{queue} has nothing in {damaged}, and is not served: {said}"


def _nothing_deleted(before: Mapping[str, bytes], after: Mapping[str, bytes], damaged: str) -> None:
    """Every byte is still there: under its name, or aside in `cut/`.  The open segment may have lost its torn tail."""
    aside = [data for name, data in after.items() if name.startswith("cut/")]
    for name, data in before.items():
        there = after.get(name)
        if there == data or data in aside:
            continue
        assert there is not None, f"{name} is gone"
        tail = data[len(_common(there, data)) :].rstrip(b"\0")
        assert any(tail in one or one in data for one in aside) or name == damaged == "", f"{name} has lost bytes"


def _differing(a: Mapping[str, bytes], b: Mapping[str, bytes]) -> set[str]:
    return {name for name in a.keys() | b.keys() if a.get(name) != b.get(name)}


def _common(a: bytes, b: bytes) -> bytes:
    n = min(len(a), len(b))
    low, high = 0, n
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return a[:low]


MENU = (
    "missing", "empty", "zeros", "half header", "half", "older", "newer", "text", "foreign arrow", "duplicate",
    "swapped", "read-only",
)  # fmt: skip


def wiped(files: dict[str, bytes], name: str, what: str, *, header: int) -> bool:
    """Take all of a file away, or nearly all; False: that is another damage.  header: bytes of half a header."""
    data = files[name]
    left = {"empty": b"", "zeros": bytes(len(data)), "half header": data[:header]}
    if what == "missing":
        del files[name]
    elif what in left:
        files[name] = left[what]
    else:
        return False
    return True


def damage(files: dict[str, bytes], name: str, what: str, chance: random.Random) -> None:
    """Damage one file in place; `read-only` is the disk's business."""
    data = files[name]
    folder = name.rpartition("/")[0]
    alike = sorted(one for one in files if one != name and one.startswith(f"{folder}/") and one[-6:] == name[-6:])
    if wiped(files, name, what, header=40):
        return
    match what:
        case "half":
            files[name] = data[: len(data) // 2]
        case "older":  # as it was some writes ago
            files[name] = data[: max(1, len(data) - chance.randint(1, max(1, len(data) // 3)))]
        case "newer":  # a version that nobody knows yet
            for version in (b"penstock.version", b"PENSTCKP", b"PENSTIDX", b"PENSTAGE"):
                at = data.find(version)
                if at >= 0:
                    place = data.find(b"0000", at) if version.startswith(b"pen") else at + 8
                    files[name] = data[: place + 1] + b"9" + data[place + 2 :]
                    return
            files[name] = data + b"of a later version"
        case "text":
            files[name] = b"what is this?" * (len(data) // 13 + 1)
        case "foreign arrow":
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, pa.schema([("x", pa.int64())])) as writer:
                writer.write_batch(pa.RecordBatch.from_pydict({"x": [1] * 300}))
            files[name] = sink.getvalue().to_pybytes()
        case "duplicate":
            files[_another(name)] = data
        case "swapped":
            if alike:
                files[name] = files[chance.choice(alike)]
        case _:
            pass


def _another(name: str) -> str:
    """A name of the same kind that nobody has."""
    folder, _, stem = name.rpartition("/")
    if stem[:20].isdigit():
        return f"{folder}/{int(stem[:20]) + 1:020d}{stem[20:]}"
    return f"{folder}/{'0' * 31}f.arrows" if folder == "stage" else f"{name}.copy"
