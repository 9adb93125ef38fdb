"""The audit sees by itself what the fold gets wrong: faults are planted in what only the fold runs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock.core
from penstock.core.state import fold as folding
from penstock.core.state.objects import Objects
from penstock.core.state.pending import DecidedState
from penstock.core.state.queue_state import FoldedQueue
from penstock.records.chunks import pack_pairs
from penstock.records.kinds import Kind
from unit.cli.forging import Forger

READING = {
    "penstock.core.state.encoding", "penstock.core.state.lsns", "penstock.core.state.durable",
    "penstock.core.state.streams", "penstock.core.topology.ruling",
}  # fmt: skip
"""What says how bytes are read, and what a state holds: all that both use."""


def _imports(file: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of whatever a file of the package takes from another."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def test_audit_and_fold_share_nothing_but_reading() -> None:
    core = Path(str(penstock.core.__file__)).parent
    audit = [taken for file in sorted(core.glob("audit_*.py")) for taken in _imports(file)]
    assert {name for module, name in audit if module == "penstock.records.kinds"} >= {"MEANINGS", "MOVES"}
    used = {module for module, _ in audit if module.startswith("penstock.core")}
    assert {module for module in used if not module.startswith("penstock.core.audit_")} == READING
    fold = {name for file in sorted((core / "state").glob("*.py")) for _, name in _imports(file)}
    assert not fold & {"MEANINGS", "MOVES", "ENDED"}, "the fold reads what the audit of it is made of"


def _life(f: Forger) -> None:
    """Sound, and with every way for a message to come and to go."""
    passing, volatile = f.declare("passing"), f.declare("volatile", durable=False)
    f.control(Kind.ROUTE, body=pack_pairs(passing, ()), route=1)
    f.control(Kind.ROUTE, body=pack_pairs(volatile, ()), route=2)
    f.grant(10, 13)
    f.about(Kind.SETTLE, 10, 11, 12, 13)
    f.about(Kind.DROP, 13, 14)
    f.about(Kind.EXPIRE, 14, 15, reason="time_limit")
    late = f.declare("late")
    f.control(Kind.RECOVERED, "late", {"upto": 17}, pack_pairs(late, (15, 17)))
    f.about(Kind.PURGE, 15, 17)
    for route in (0, 1, 2):
        f.messages(2, route=route)
    first = f.messages(2)
    f.control(Kind.TOOK, "late", None, pack_pairs(late, (first, first + 1)))
    f.messages(2, transient=True)
    f.control(Kind.QUEUE_DELETE, "passing", {"vhost": "/"}, pack_pairs(passing, ()))
    f.boot()
    f.messages(1)


def _forget(kind: Kind) -> Callable[[pytest.MonkeyPatch], None]:
    """The fold passes over a kind of record."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(folding, "_BULK", np.array([one for one in folding._BULK.tolist() if one != kind]))
        patch.setattr(Objects, "FOLDS", {one: note for one, note in Objects.FOLDS.items() if one is not kind})

    return plant


def _pairs_less_their_last(patch: pytest.MonkeyPatch) -> None:
    def apply(queue: FoldedQueue, right: Callable[[FoldedQueue], Any] = FoldedQueue.apply) -> None:
        queue.removed = [pairs[:-1] if len(pairs) > 1 else pairs for pairs in queue.removed]
        right(queue)

    patch.setattr(FoldedQueue, "apply", apply)


def _transient_ones_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FoldedQueue, "drop_transient", lambda queue: None)
    patch.setattr(folding, "keep", lambda part, where: None)


def _grants_are_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(folding, "load", lambda header: {"attempt": 0})


FAULTS = [
    *(
        _forget(kind)
        for kind in (
            Kind.SETTLE, Kind.DROP, Kind.PURGE, Kind.EXPIRE, Kind.RECOVERED, Kind.TOOK, Kind.QUEUE_DELETE, Kind.BOOT,
        )
    ),
    _pairs_less_their_last, _transient_ones_stay, _grants_are_ends,
]  # fmt: skip


def test_the_life_is_sound(tmp_path: Path) -> None:
    forger = Forger(tmp_path)
    _life(forger)
    assert forger.report().findings == []


@pytest.mark.parametrize("plant", FAULTS)
def test_a_fault_of_the_fold_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forger = Forger(tmp_path)
    _life(forger)
    plant(monkeypatch)
    assert {finding.guarantee for finding in forger.report().findings} == {"counts"}


@pytest.mark.parametrize("chunk", [(1, 1, 2), (0, 2, 2), (0, 1, 6), (0, 1, 0)])
def test_chunks_that_the_fold_would_take_are_found(
    chunk: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(state: DecidedState, header: dict[str, Any]) -> None:
        state.chunks, state.rows = header["chunk"], header["rows"]

    forger = Forger(tmp_path)
    forger.control(Kind.DECIDED, "query", {"batch": 0, "parts": [["a", 5, 9, 7, "q", "", "/"]]})
    forger.control(Kind.CHUNK, "query", dict(zip(("batch", "chunk", "rows"), chunk, strict=True)))
    monkeypatch.setattr(DecidedState, "copied", copied)
    assert {finding.guarantee for finding in forger.report().findings} == {"sinks"}
