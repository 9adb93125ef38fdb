"""A data folder in which everything was said that the log can say opens for ever, and means what it meant.

Each `tests/data/log_*.tar.xz` was made by `tests/golden.py`, the first before the middle of the house was drawn again.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from choices import EFFORT
from golden import facts, keep, kinds, log_of, opened, read, settings, stands
from penstock.core.state.durable import DurableState, canonical
from penstock.log.log import Log
from penstock.log.simdisk import SimDisk
from penstock.log.verify import verify
from penstock.records.kinds import Kind
from penstock.testing import Broker
from penstock.testing.instance import FakeClock as Time
from property.test_looking import Case
from unit.log.test_golden import EXPECTED as OLDEST
from unit.log.test_golden import golden as oldest

FOLDERS = tuple(sorted((Path(__file__).resolve().parents[2] / "data").glob("log_*.tar.xz")))

HELD: dict[str, dict[str, dict[str, list[int]]]] = {"log_v1_whole.tar.xz": {"q15": {"leased": [466]}}}
"""What the version that made the folder lost at a start: a purge for want of consumers took what a stream holds."""


OPENED = [*product(FOLDERS, [True]), *product(FOLDERS[:1] if EFFORT == 1 else FOLDERS, [False])]
"""What a server opens: the state is the same without checkpoints, so a usual run does without one in one folder."""

every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)


@cache
def kept(folder: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    return read(folder)


def files(folder: Path, *, checkpoint: bool) -> dict[str, bytes]:
    return {name: data for name, data in kept(folder)[0].items() if checkpoint or not name.startswith("checkpoints/")}


@cache
def held(folder: Path, *, checkpoint: bool) -> tuple[Log, DurableState]:
    """What opening it gives, which nobody changes."""
    return opened(files(folder, checkpoint=checkpoint))


def test_folders_are_kept_and_never_written_over(tmp_path: Path) -> None:
    assert FOLDERS
    path = tmp_path / "log_v1_x.tar.xz"
    path.write_bytes(b"kept")
    with pytest.raises(FileExistsError, match="take another name"):
        keep(path)
    assert path.read_bytes() == b"kept"


@every_folder
@pytest.mark.parametrize("checkpoint", [True, False])
def test_it_is_sound_and_folds_to_what_it_held(folder: Path, checkpoint: bool) -> None:
    given, expected = files(folder, checkpoint=checkpoint), kept(folder)[1]
    assert verify(SimDisk(given)).good
    log, state = held(folder, checkpoint=checkpoint)
    assert bool(log.recovery.checkpoint) is checkpoint
    assert facts(state) == expected["state"]
    assert sorted(kind.name for kind in kinds(log)) == expected["kinds"]


@every_folder
def test_with_and_without_a_checkpoint_is_the_same_state(folder: Path) -> None:
    with_one, without = (held(folder, checkpoint=checkpoint)[1] for checkpoint in (True, False))
    assert canonical(with_one) == canonical(without)


def test_a_kind_that_the_log_may_say_is_in_one_of_the_folders() -> None:
    """A new kind needs a folder of its own, made by the version that brings it."""
    said = {Kind[name] for folder in FOLDERS for name in kept(folder)[1]["kinds"]} | kinds(log_of(oldest()))
    assert set(Kind) - said == {Kind.MARK}, "MARK stands at the end of a segment that was closed by a stop"
    assert OLDEST["rows"]


@pytest.mark.parametrize(("folder", "checkpoint"), OPENED, ids=lambda one: one.name if isinstance(one, Path) else one)
def test_a_server_that_opens_it_has_every_message_where_it_stood(folder: Path, checkpoint: bool) -> None:
    expected, lost = kept(folder)[1], HELD.get(folder.name, {})
    cases = [Case(int(number), options) for number, options in expected["options"].items()]
    disk = SimDisk(files(folder, checkpoint=checkpoint))
    with Broker(settings(cases), disk=disk, clock=Time(expected["wall"])) as broker:
        assert stands(broker) == {name: places | lost.get(name, {}) for name, places in expected["stands"].items()}
