"""The watcher itself: what a process does is seen, and what it does not do is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostile.watching import MIB, Bounds, Watched

CHILD = """
import socket, sys
for line in sys.stdin:
    what, _, number = line.strip().partition(" ")
    if what == "memory":
        held = b"x" * int(number); del held
    elif what == "sockets":
        held = [socket.socket() for _ in range(int(number))]
    elif what == "close":
        del held
    elif what == "lines":
        print("a line\\n" * int(number), end="")
    elif what == "end":
        break
    sys.stdout.flush()
    print("done", file=sys.stderr, flush=True)
"""


class Child:
    """A process that does what it is told, one thing after the other."""

    def __init__(self, output: Path) -> None:
        self.output = output
        with output.open("wb") as stdout:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.PIPE, text=True
            )
        self.do("lines 1")  # it has started

    def do(self, what: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        self.process.stderr.readline()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    child = Child(tmp_path / "output.txt")
    with child.process:
        yield child
        assert child.process.stdin is not None
        child.process.stdin.close()


def test_a_quiet_process_stays_within_narrow_bounds(child: Child) -> None:
    with Watched(child.process.pid, child.output) as seen:
        child.do("nothing")
        assert seen.alive
        seen.judge(Bounds(memory=MIB, descriptors=0, lines=0, written=0))


@pytest.mark.parametrize(
    ("does", "bounds", "told"),
    [
        (f"memory {48 * MIB}", Bounds(memory=16 * MIB), "memory rose by 4"),  # it is free again when it is judged
        ("lines 12", Bounds(lines=11), "lines rose by 12, and 11 are allowed"),
        ("lines 12", Bounds(written=80), "written rose by 84"),
    ],
)
def test_what_goes_beyond_a_bound_is_named_with_both_values(child: Child, does: str, bounds: Bounds, told: str) -> None:
    with Watched(child.process.pid, child.output) as seen:
        child.do(does)
        with pytest.raises(AssertionError, match=told):
            seen.judge(bounds)


def test_descriptors_that_stay_open_are_seen(child: Child) -> None:
    with Watched(child.process.pid, child.output) as seen:
        before = seen.sockets()
        child.do("sockets 30")
        assert seen.sockets() == before + 30
        assert not seen.settled(29)()
        seen.judge(Bounds(descriptors=30))
        child.do("close")
        assert seen.settled(0)()
        with pytest.raises(AssertionError, match="descriptors rose by 30, and 29 are allowed"):
            seen.judge(Bounds(descriptors=29))


def test_a_process_that_ended_is_no_quiet_one(child: Child) -> None:
    with Watched(child.process.pid, child.output) as seen:
        child.do("end")
        child.process.wait(60)
        assert not seen.alive
        with pytest.raises(AssertionError, match="has ended"):
            seen.judge(Bounds())
