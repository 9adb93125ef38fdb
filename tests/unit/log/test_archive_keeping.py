"""Days that an archive's retention has passed, and a manifest that is made anew from the files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date
from functools import cache
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from choices import EFFORT, spread
from damage import MENU, damage
from penstock.errors import LogDamaged, NotFound
from penstock.log.archive import row_groups
from penstock.log.archive.manifest import NAME, Manifest, commit, prunable, read, tidy
from penstock.log.archive.repairing import check, rebuilt
from penstock.log.archive.row_groups import Archive
from penstock.log.simdisk import SimDisk
from penstock.records.schema import COLUMNS
from unit.log.test_archive import DAY, FEW, TOPICS, Run, between, history, read_back, same

NOW = 20_010 * DAY
FAR = 1 << 60


def made(seed: int, rows: int = 900, stretches: int = 6, *, merged: bool = True, topics: Sequence[str] = TOPICS) -> Run:
    """An archive of some days."""
    files, table = built(seed, rows, stretches, merged, tuple(topics))
    return Run(SimDisk(files), table, stretches)


@cache
def built(
    seed: int, rows: int, stretches: int, merged: bool, topics: tuple[str, ...]
) -> tuple[dict[str, bytes], pa.Table]:
    table = history(seed, rows, topics=topics)
    at = COLUMNS.get_field_index("time")
    times = table.column(at).cast(pa.int64()).to_numpy()
    slow = times[0] + (times - times[0]) * (4 * DAY // (times[-1] - times[0]))
    table = table.set_column(at, COLUMNS.field(at), pa.chunked_array([pa.array(slow).cast(COLUMNS.field(at).type)]))
    run = Run(SimDisk(), table, stretches)
    for _ in range(stretches):
        run.step()
    while merged and run.step():
        pass
    return run.disk.files(), run.table


def parquet(run: Run) -> list[str]:
    return [name for name in run.disk.files() if name.endswith(".parquet")]


def anew(run: Run, origin: int = 7) -> Manifest:
    return rebuilt(run.disk, parquet(run), origin, 1_000)


# -- pruning


@pytest.mark.parametrize("merged", [False, True])
def test_whole_days_go_and_what_is_left_is_what_was_there(merged: bool) -> None:
    run = made(11, rows=2000, merged=merged)
    before, days = run.manifest(), sorted({part.day for part in run.manifest().files})
    assert len(days) > 2
    midnight = (date.fromisoformat(days[1]) - date(1970, 1, 1)).days * DAY
    assert prunable(before, midnight + DAY - 1, DAY, None, FAR) is None  # of the first day a microsecond is too young
    due = prunable(before, midnight + DAY, DAY, None, FAR)
    assert due is not None
    assert due.day == days[0]
    after = before.without(due.cut)
    commit(run.disk, after)
    tidy(run.disk, after)
    assert {part.day for part in after.files} == set(days[1:])
    assert (due.files, due.rows) == (len(before.files) - len(after.files), before.rows - after.rows)
    assert set(parquet(run)) == {part.path for part in after.files}
    assert run.whole()
    again = read(run.disk)
    assert again is not None
    assert (again.pruned, again.spans[0][0], again.first) == (due.cut, due.cut, due.cut)
    assert same(read_back(run.disk, due.cut, FAR), between(run.table, due.cut, FAR))
    assert again.has(1, due.cut - 1)  # it is not archived a second time
    assert again.has(1, run.edges[-1] - 1)
    with pytest.raises(NotFound, match=rf"are archived no longer: .* has come to LSN {due.cut}"):
        read_back(run.disk, 1, FAR)


def test_a_reader_under_which_a_day_goes_says_so_and_leaves_nothing_out_silently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_groups, "GIVEN", 1)
    run = made(12, rows=2000)
    archive = Archive(run.disk)
    rows = archive.batches(1, FAR)
    first = next(rows)
    archive._open.clear()  # pyright: ignore[reportPrivateUsage] - as if it had more files open than it may
    archive._kept.clear()  # pyright: ignore[reportPrivateUsage]
    before = run.manifest()
    days = sorted({part.day for part in before.files})
    cut = min(part.first for part in before.files if part.day == days[-1])
    after = before.without(cut)
    commit(run.disk, after)
    tidy(run.disk, after)
    assert first.column("lsn")[-1].as_py() < cut
    with pytest.raises(NotFound, match="archived no longer"):
        list(rows)


def test_what_somebody_may_still_ask_for_stays_and_so_does_the_newest_day() -> None:
    manifest = made(13, rows=2000).manifest()
    days = sorted({part.day for part in manifest.files})
    firsts = [min(part.first for part in manifest.files if part.day == day) for day in days]
    whole = prunable(manifest, NOW, 0, None, FAR)
    assert whole is not None
    assert (whole.cut, whole.day) == (firsts[-1], days[-2])
    assert prunable(manifest, NOW, 0, None, firsts[1] - 1) is None
    held = prunable(manifest, NOW, 0, None, firsts[2] - 1)
    assert held is not None
    assert held.cut == firsts[1]
    assert prunable(manifest, NOW, None, None, FAR) is None
    assert prunable(manifest, NOW, None, manifest.size, FAR) is None
    by_size = prunable(manifest, NOW, None, manifest.size - 1, FAR)
    assert by_size is not None
    assert by_size.day == days[0]
    with pytest.raises(ValueError, match="lies within"):
        manifest.without(firsts[1] - 1)


# -- repairing


@pytest.mark.parametrize(("what", "merged"), [*product(MENU, [True]), *product(spread(MENU, 3), [False])])
def test_a_damaged_manifest_is_named_and_made_anew_as_it_was(what: str, merged: bool) -> None:
    run = made(14, merged=merged, topics=FEW)
    was, files = run.manifest(), run.disk.files()
    damage(files, NAME, what, random.Random(what))
    damaged = Run(SimDisk(files), run.table, 6)
    same_bytes = files.get(NAME) == run.disk.files()[NAME]
    try:
        found = read(damaged.disk)
    except LogDamaged as error:
        assert "penstock log archive --repair makes it anew" in str(error)  # noqa: PT017 - some kinds leave it readable
    else:
        assert same_bytes or found is None
    fresh = anew(damaged)
    assert fresh == was._replace(number=1_000, gone=(), vias=fresh.vias)
    assert fresh.vias.items() >= was.vias.items()
    commit(damaged.disk, fresh)
    assert damaged.manifest() == fresh
    alike = {**damaged.disk.files(), NAME: b""} == {**run.disk.files(), NAME: b""}
    assert (alike and what != MENU[0]) or damaged.whole()  # which one says for all that have the same files beside it


def test_a_manifest_is_made_anew_at_any_step_of_a_crash() -> None:
    """Files on their way and files that were replaced: each row counts once."""
    table = history(15, 200, topics=FEW)
    ready = Run(SimDisk(), table, 5)
    for _ in range(4):
        ready.step()
    files, after, failures = ready.disk.files(), 0, 0
    for kind in ("write", "sync", "folder"):
        after = 0
        while True:
            run = Run(SimDisk(files, seed=after), table, 5)
            run.tries = 100
            run.disk.fail_next(kind, after=after)
            try:
                while run.step():
                    pass
            except (OSError, pa.ArrowException):
                failures += 1
            else:
                break
            run.disk.crash()
            was = run.manifest()
            try:
                fresh = anew(run)
            except LogDamaged as error:
                assert ".new/" in str(error), (kind, after)  # noqa: PT017 - a torn file on its way is named
                for name in parquet(run):
                    if name.startswith(".new/") and name not in {part.fresh for part in was.files}:
                        run.disk.remove(name)
                fresh = anew(run)
            assert set(fresh.spans) in ({*was.spans}, {(run.edges[0], run.edges[-1])}), (kind, after)
            commit(run.disk, fresh)
            tidy(run.disk, fresh)
            assert run.whole(), (kind, after)
            run.tries = 200
            while run.step():
                pass
            assert run.whole()
            assert run.manifest().rows == table.num_rows
            after += 5 + after // 2 if EFFORT > 1 else 7 + after
    assert failures > 8


def test_an_archive_that_lacks_something_is_refused_by_name() -> None:
    run = made(16)
    files = run.disk.files()
    part = max(run.manifest().files, key=lambda one: one.rows)

    def refused(changed: dict[str, bytes], told: str, origin: int = 7) -> None:
        paths = [name for name in changed if name.endswith(".parquet")]
        with pytest.raises(LogDamaged, match=told):
            rebuilt(SimDisk(changed), paths, origin, 1)

    without = {name: data for name, data in files.items() if name != part.path}
    refused(without, r"has \d+ of the \d+ rows of LSNs \d+ to \d+: files are missing")
    flipped = bytearray(files[part.path])
    flipped[len(flipped) // 3] ^= 16
    refused({**files, part.path: bytes(flipped)}, f"{part.path} cannot be read")
    refused({**without, "messages/topic=x/day=2024-10-04/1.parquet": files[part.path]}, f"was written as {part.path}")
    refused(files, "is of another log, with origin 7", origin=8)
    other: Any = pa.BufferOutputStream()
    import pyarrow.parquet as parquet

    rows: Any = parquet
    rows.write_table(COLUMNS.empty_table(), other)
    refused({**files, "records/day=2024-10-04/x.parquet": other.getvalue().to_pybytes()}, "does not say what")


def test_an_archive_without_its_oldest_days_is_made_anew() -> None:
    run = made(17, rows=2000)
    due = prunable(run.manifest(), NOW, 0, None, FAR)
    assert due is not None
    after = run.manifest().without(due.cut)
    commit(run.disk, after)
    tidy(run.disk, after)
    fresh = anew(run)
    assert (fresh.spans, fresh.files) == (after.spans, after.files)
    found = check(run.disk)
    assert found is not None
    assert found.damage == []
