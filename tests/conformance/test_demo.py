"""The demo, small and without Spark: right to the last flight, nothing left behind, and a wrong figure is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from choices import for_conformance
from forked import ran
from waiting import eventually

pytestmark = pytest.mark.conformance

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo"
FLIGHTS = 600
ENDS_S = 600.0


class Run:
    """The demo in a folder of the test's own, which is also its folder for temporary files."""

    def __init__(self, folder: Path) -> None:
        self.temporary = Path(mkdtemp(prefix="demo-"))  # the socket of its forks lies there, and has a short name
        self.output = folder / "output"
        source = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {**os.environ, "TMPDIR": str(self.temporary), "PYTHONPATH": source, "COLUMNS": "120"}
        command = [sys.executable, str(DEMO / "main.py"), "--no-spark", "--flights", str(FLIGHTS)]
        self.process = subprocess.Popen(
            [*command, "--output", str(self.output)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def left(self) -> list[str]:
        """Command lines of processes that the demo has started and that still run."""
        return marked(f"TMPDIR={self.temporary}")


def marked(mark: str) -> list[str]:
    """Command lines of processes that began with this variable."""
    found = list[str]()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended, or is not ours
    return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    demo = Run(tmp_path)
    yield demo
    if demo.process.poll() is None:
        demo.process.kill()
        demo.process.wait()


def test_every_figure_is_right_and_nothing_is_left_behind(run: Run) -> None:
    said, _ = run.process.communicate(timeout=ENDS_S)
    assert run.process.returncode == 0, said
    figures = json.loads((run.output / "figures.json").read_text())
    assert figures["good"], said
    assert {"published", "views", "worked", "dead letters", "left waiting", "faults", "audit"} == {
        figure["group"] for figure in figures["figures"]
    }
    assert (run.output / "demo.png").read_bytes().startswith(b"\x89PNG")
    page = (run.output / "demo.html").read_text()
    assert page.count("<svg") == 2
    assert "All" in said
    assert "kill -9" in said
    eventually(lambda: not run.left(), lambda: f"{run.left()}")  # Python's own helpers end when it has
    run.temporary.rmdir()  # nothing lies in it


@for_conformance("the demo once more")
def test_a_stop_in_the_middle_leaves_nothing_behind(run: Run) -> None:
    assert run.process.stdout is not None
    said = ""
    while "server ready" not in said:
        line = run.process.stdout.readline()
        assert line, said
        said += line
    run.process.send_signal(signal.SIGINT)
    rest, _ = run.process.communicate(timeout=ENDS_S)
    assert run.process.returncode == 130, said + rest
    eventually(lambda: not run.left(), lambda: f"{run.left()}")  # Python's own helpers end when it has
    run.temporary.rmdir()  # nothing lies in it


CREW = """
import sys, time

def waits(file):
    with open(file, "w") as told:
        told.write("works")
    time.sleep(600)

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    from processes import Crew

    Crew().start("one", waits, sys.argv[2])
    sys.stdin.read()
"""


def test_who_publishes_and_works_dies_with_the_demo(tmp_path: Path) -> None:
    """A kill -9 leaves nobody to sweep."""
    script, told = tmp_path / "crew.py", tmp_path / "told"
    script.write_text(CREW)
    mark = f"CREW={tmp_path}"
    with subprocess.Popen(
        [sys.executable, str(script), str(DEMO), str(told)],
        stdin=subprocess.PIPE,
        env={**os.environ, "CREW": str(tmp_path)},
    ) as demo:
        try:
            eventually(lambda: told.exists() and told.read_text() == "works")
            assert len(marked(mark)) > 2
        finally:
            demo.kill()
    eventually(lambda: marked(mark) == [], lambda: str(marked(mark)))


LOADS = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
for program in sys.argv[2:]:
    runpy.run_path(program, run_name="loaded")
"""


def test_each_demo_loads(tmp_path: Path) -> None:
    """Those of a cluster and of sites run in `make conformance`."""
    loads = tmp_path / "loads.py"
    loads.write_text(LOADS)
    done = ran(str(loads), str(DEMO), *(str(DEMO / name) for name in ("cluster.py", "sites.py")), seconds=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DEMO))
    import findings
    import flights

    return findings, flights


def test_one_flight_too_few_or_too_many_is_a_wrong_figure(parts: Any) -> None:
    findings, flights = parts
    table = flights.load(200)
    truth = flights.truth(table)
    assert len(truth.all) == len(truth.workable) + len(truth.poison) == 200

    class Log:
        def __init__(self, bodies: list[bytes]) -> None:
            self.bodies = bodies

        def replay_batches(self, topic: str, columns: list[str]) -> Iterator[Any]:
            import pyarrow as pa

            yield pa.record_batch({"body": pa.array(self.bodies, pa.binary())})

    def wrong(bodies: list[bytes]) -> int:
        return sum(not figure.good for figure in findings.published(Log(bodies), truth))

    bodies = flights.bodies(table)
    assert wrong(bodies) == 0
    assert wrong(bodies[1:]) == 3
    assert wrong([*bodies, bodies[0]]) == 1
    assert wrong([*bodies[1:], bodies[1]]) == 2


def test_the_truth_of_the_whole_data_set(parts: Any) -> None:
    _, flights = parts
    truth = flights.truth(flights.load())
    assert (len(truth.all), len(truth.poison), len(truth.late), len(truth.carrier)) == (336_776, 9_430, 10_034, 58_665)
    assert sum(delay.flights for delay in truth.delays.values()) == 336_776
    assert sum(delay.total or 0 for delay in truth.delays.values()) == truth.minutes == 2_257_174
