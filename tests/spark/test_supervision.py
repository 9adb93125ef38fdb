"""Who starts what again, and when it is given up; without Spark."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
from flight_house import FlightHouse
from penstock.cli.checkup import examine
from penstock.cli.child_process import Child
from penstock.cli.driver_jobs import sweep
from penstock.cli.supervisor import Supervisor, login
from penstock.config.load import load_mapping, load_text
from penstock.errors import DataFolderInUse, NotFound, SettingsError
from penstock.spark.pipelines import driver
from penstock.spark.pipelines.definition import Definition, Input
from penstock.spark.pipelines.driver import Driver, Reporter
from penstock.spark.pipelines.running import FAILURES_MAX, Running
from penstock.spark.reading.inference import NO_MESSAGE
from penstock.spark.remote import Remote, Where
from tls_lab import Files


class Scripted:
    """A pipeline whose starts do what the script says: raise an error, or give a query."""

    def __init__(self, *script: Any, **given: Any) -> None:
        self.script = list(script)
        self.definition = Definition("scripted", (Input("input", queue="q", mode="queue"),), (), **given)
        self.changed = False
        self.anew = 0
        self.blame = True
        self.blamed: list[bool] = []

    def note_code(self) -> None:
        self.changed = False

    def code_changed(self) -> bool:
        return self.changed

    def anew_asked(self) -> bool:
        return self.anew > 0

    def begin_anew(self) -> None:
        self.anew -= 1

    def start(self, spark: object, *, once: bool = False) -> Any:
        step = self.script.pop(0)
        self.blamed.append(self.blame)
        if isinstance(step, Exception):
            raise step
        return step


class Query:
    """A query that has finished these batches, and then ended with an error or not."""

    def __init__(self, batches: int, error: str | None = None, *, active: bool = True) -> None:
        offsets = {"endOffset": "{}", "latestOffset": None}
        progress = {"batchId": batches - 1, "numInputRows": 10, "durationMs": {"triggerExecution": 7}}
        self.lastProgress = {**progress, "sources": [offsets]} if batches else None
        self.isActive = active and error is None
        self.stopped = False
        self.id = "q"
        self._error = error

    def exception(self) -> str | None:
        return self._error

    def stop(self) -> None:
        self.stopped, self.isActive = True, False

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802 - Spark's name
        return [{**self.lastProgress, "batchId": number} for number in range(int(self.lastProgress["batchId"]) + 1)]


LATER = itertools.count(2, 2)


def looked(one: Running, times: int) -> Running:
    """After so many looks with all pauses over."""
    for _ in range(times):
        one.look(None, one.next_try + next(LATER))
    return one


def test_a_pipeline_that_fails_is_started_again_until_it_is_given_up() -> None:
    one = Running(Scripted(*[NotFound("no message yet")] * FAILURES_MAX))  # type: ignore[arg-type]
    looked(one, FAILURES_MAX - 1)
    assert (one.state, one.failures, one.error) == ("waiting", FAILURES_MAX - 1, "no message yet")
    assert looked(one, 3).state == "failed"
    assert one.starts == FAILURES_MAX


def test_the_search_for_a_row_to_blame_has_tries_of_its_own() -> None:
    """With three tries: the batch, four times smaller, the row; the pauses between them do not grow."""
    bad, full = "ValueError: cannot work with 7", "penstock.errors.Refused: queue 'out' is full"
    script = [NotFound("no server"), Query(0, full), Query(0, bad), Query(0, bad), Query(1)]
    scripted = Scripted(*script, poison_after=3)
    one = Running(scripted)  # type: ignore[arg-type]
    looked(one, 12)
    assert scripted.blamed == [True, True, False, True, True], "a server that is away and a full queue blame nobody"
    most = FAILURES_MAX + 3 + 5 + 3
    one = Running(Scripted(*[Query(0, bad)] * most, poison_after=3))  # type: ignore[arg-type]
    now = 100.0
    while one.failures < 11:
        one.look(None, now)
        assert one.next_try <= now + 0.5
        now += 1
    looked(one, 2 * most)
    assert (one.state, one.failures) == ("failed", most)
    alone = Running(Scripted(*[Query(0, bad)] * 2, Query(1), poison_after=1), once=True)  # type: ignore[arg-type]
    assert looked(alone, 6).state == "running"


def test_waiting_for_a_first_message_is_no_failure() -> None:
    nothing = NotFound("queue q has no message yet", reason=NO_MESSAGE)
    one = Running(Scripted(*[nothing] * (3 * FAILURES_MAX), Query(1)))  # type: ignore[arg-type]
    one.look(None, one.next_try)
    since = one.since
    for _ in range(3 * FAILURES_MAX - 1):
        one.look(None, one.next_try)
        told = one.status(0.0)
        assert (told["state"], told["failures"], told["starts"], told["error"]) == ("waiting", 0, 0, None)
        assert told["waits_for"].startswith("queue q has no message yet; it starts with the first one")
        assert (told["next_try"], one.since) == (None, since), "it waits for a message and not for a time"
    one.look(None, one.next_try)
    assert (one.state, one.starts, one.status()["waits_for"]) == ("running", 1, None)
    alone = looked(Running(Scripted(nothing), once=True), 3)  # type: ignore[arg-type]
    assert (alone.state, alone.is_over, alone.failure) == ("done", True, None), "what there was is used up"
    wall = 1_000_000_000.0
    timed = Running(Scripted(nothing, Query(1), schedule="0 2 * * * Z"), wall=lambda: wall)  # type: ignore[arg-type]
    timed.look(None, timed.next_try)
    assert (timed.state, timed.status()["waits_for"] is None) == ("scheduled", False)
    timed.look(None, timed.next_try)
    assert timed.state == "running"


def test_what_ended_between_a_look_and_a_stop_is_counted() -> None:
    one = Running(Scripted(Query(1), Query(1)))  # type: ignore[arg-type]
    looked(one, 2)
    assert one.figures.rows == 10
    query = one.query
    query.lastProgress = {**query.lastProgress, "batchId": 1}
    one.replace(one.pipeline)
    looked(one, 3)
    assert (one.figures.batches, one.figures.rows) == (3, 30), "two of the first query, one of the second"
    query = one.query
    query.lastProgress = {**query.lastProgress, "batchId": 1}
    one.stop()
    assert one.status()["rows"] == 40


def test_a_finished_batch_forgives_failures() -> None:
    broken = Query(0, "penstock.errors.Fenced: stream 's' is now read by another")
    one = Running(Scripted(*[broken] * 5, Query(3), NotFound("never")))  # type: ignore[arg-type]
    looked(one, 10)
    assert (one.failures, one.error) == (5, "stream 's' is now read by another")
    looked(one, 2)
    assert (one.state, one.failures, one.error) == ("running", 0, None)
    assert (one.figures.batch, one.figures.rows, one.figures.batch_ms) == (2, 30, 7)


def test_what_java_alone_tells_is_in_the_log_once_for_failures_that_say_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cut = [Query(0, f"Task not serializable\n\tat a.X(Y:{line})\nCaused by: {why}") for line, why in
           enumerate(("changed", "changed", "another", "changed"))]  # fmt: skip
    one = looked(Running(Scripted(*cut)), 8)  # type: ignore[arg-type]
    assert (one.failures, one.error) == (4, "Task not serializable: changed")
    told = [line for line in caplog.messages if "all that Java says" in line]
    assert [line.partition("(Y:")[2][0] for line in told] == ["0", "2", "3"]
    caplog.clear()
    looked(Running(Scripted(Query(0, "penstock.errors.Fenced: read by another"))), 2)  # type: ignore[arg-type]
    assert caplog.messages == ["pipeline scripted: read by another"]


def test_a_setting_that_cannot_work_is_not_tried_again() -> None:
    one = looked(Running(Scripted(SettingsError("changed"))), 5)  # type: ignore[arg-type]
    assert (one.state, one.starts, one.status()["error"]) == ("failed", 1, "changed")


def test_a_failed_pipeline_starts_again_when_its_definition_or_its_code_changes() -> None:
    broken = Scripted(SettingsError("no such column"), SettingsError("still none"), Query(1))
    one = looked(Running(broken), 3)  # type: ignore[arg-type]
    assert (one.state, one.starts) == ("failed", 1)
    broken.changed = True
    assert looked(one, 3).error == "still none"
    other = Scripted(Query(2), Query(3))
    one.replace(other)  # type: ignore[arg-type]
    assert (looked(one, 2).state, one.starts, one.error) == ("running", 3, None)
    query = one.query
    other.changed = True
    looked(one, 3)
    assert (query.stopped, one.state, one.starts) == (True, "running", 4)


def test_a_pipeline_begins_anew_also_when_it_has_failed() -> None:
    broken = Scripted(SettingsError("it has changed since its checkpoint was made"), Query(1), Query(2))
    one = looked(Running(broken), 3)  # type: ignore[arg-type]
    assert (one.state, one.starts) == ("failed", 1)
    broken.anew = 1
    assert (looked(one, 3).state, one.starts, broken.anew) == ("running", 2, 0)
    query = one.query
    broken.anew = 1
    looked(one, 3)
    assert (query.stopped, one.state, one.starts, broken.anew) == (True, "running", 3, 0)


def test_a_pipeline_that_leaves_while_it_starts_does_not_run_on(tmp_path: Path) -> None:
    begun, go_on, query = threading.Event(), threading.Event(), Query(1)

    class Slow(Scripted):
        def start(self, spark: object, *, once: bool = False) -> Any:
            begun.set()
            assert go_on.wait(20)
            return query

    driver = Driver({"folder": str(tmp_path), "url": "penstock://nowhere:1", "pipelines": []})
    one = Running(Slow(), executor=driver.executor)  # type: ignore[arg-type]
    driver.all.append(one)
    driver._lock(one.name)
    one.look(None, 1.0)
    assert begun.wait(20)
    driver.take({**driver.job})
    assert driver.all == []
    go_on.set()
    driver.executor.shutdown(wait=True)
    assert query.stopped
    assert not driver._locks, "and nobody else could have it before"


def test_a_machine_without_room_for_a_process_is_asked_again(tmp_path: Path) -> None:
    said = list[str]()
    child = Child("driver", said.append, (0.01, 0.02))
    with pytest.raises(FileNotFoundError):
        child.start([str(tmp_path / "none")])  # the first start tells of a mistake
    child.start([sys.executable, "-c", ""], log=tmp_path / "log")
    while child.ended() is None:
        assert child.process is not None
        child.process.wait(20)
    child.start([str(tmp_path / "none")], log=tmp_path / "log")
    assert child.pid is None
    assert said[0].startswith("penstock: the driver cannot be started now: ")
    rest, deadline = threading.Event(), time.monotonic() + 60
    while not child.due():
        assert time.monotonic() < deadline
        rest.wait(0.005)


def test_a_java_that_hangs_is_told_from_one_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pipelines were shown as running for ever."""
    lost = threading.Event()
    pulse = driver.Pulse(lost.set)
    for _ in range(3):
        pulse.beat()
        assert [pulse.is_lost() for _ in range(driver.LOOKS)] == [False] * driver.LOOKS
    assert pulse.is_lost()
    monkeypatch.setattr(driver, "LOOK_S", 0.001)
    pulse.beat()
    pulse.start()
    assert lost.wait(60)


def test_how_pipelines_are_is_read_by_the_thread_that_runs_them(tmp_path: Path) -> None:
    """The one that talks to the server has what was told last: figures change under whoever else reads them."""
    readers = list[threading.Thread]()

    class One:
        name = "p"

        def status(self, now: float) -> dict[str, Any]:
            readers.append(threading.current_thread())
            return {"state": "running"}

    job = {"url": "penstock://127.0.0.1:1"}
    reporter = Reporter(SimpleNamespace(job=job, folder=tmp_path, name="driver", all=[One()]))  # type: ignore[arg-type]
    reporter.tell("running")
    reporter.start()
    reporter.stop()
    assert set(readers) == {threading.current_thread()}
    assert json.loads((tmp_path / "status.json").read_text())["pipelines"]["p"]["state"] == "stopped"


def test_how_pipelines_are_is_told_with_the_login_that_the_settings_have_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.spark.pipelines.driver.TELL_S", 0.02)
    with FlightHouse(tmp_path / "data") as house, penstock.connect(house.url) as client:
        job = {"url": house.url.replace("guest:guest", "guest"), "user": "guest", "password": "of yesterday"}
        one = SimpleNamespace(name="p", pipeline=SimpleNamespace(definition=Definition("p", (), ())))
        one.status = lambda now: {"state": "running"}
        driver = SimpleNamespace(job=job, folder=tmp_path, name="driver", all=[one])
        reporter = Reporter(driver)  # type: ignore[arg-type]
        reporter.tell("running")
        reporter.start()
        until(lambda: "the server is not told how the pipelines are" in caplog.text)
        assert client.action("pipeline_status")["pipelines"] == []
        driver.job = {**job, "password": "guest"}
        until(lambda: client.action("pipeline_status")["pipelines"])
        reporter.stop()


def test_what_killed_runs_have_left_is_swept(tmp_path: Path) -> None:
    dead, alive, now = 2**22 + 1, os.getpid(), 1_000_000.0
    for number, age in ((dead, 7200.0), (alive, 7200.0), (dead + 1, 60.0)):
        (tmp_path / f"scratch-run-{number}" / "blocks").mkdir(parents=True)
        for name in (f"driver-run-{number}.json", f"driver-run-{number}.log", f"status-run-{number}.json"):
            (tmp_path / name).write_text("{}")
            os.utime(tmp_path / name, (now - age, now - age))
    for name in ("driver.json", "status.json", "scratch-run-x", "driver-run-me.json"):
        (tmp_path / name).touch()
    assert {path.name for path in sweep(tmp_path, now)} == {
        f"scratch-run-{dead}", f"driver-run-{dead}.json", f"driver-run-{dead}.log", f"status-run-{dead}.json"
    }  # fmt: skip
    assert len(list(tmp_path.iterdir())) == 12
    assert sweep(tmp_path / "none", now) == []


def test_a_changed_view_on_spark_is_followed(tmp_path: Path) -> None:
    file, lines = tmp_path / "penstock.toml", list[str]()
    text = f"""
server.data = "{tmp_path / "data"}"
[[queue]]
name = "orders"
[[view]]
name = "totals"
source = "orders"
select = "COUNT(/id) AS /n"
engine = "spark"
"""
    file.write_text(text)
    supervisor = Supervisor(
        load_text(text), ready_file=None, say=lines.append, file=file, reload=lambda: load_text(file.read_text())
    )
    supervisor.folder.mkdir(parents=True)
    supervisor.ready = {"flight": "127.0.0.1:1"}

    def followed(changed: str) -> list[Any]:
        file.write_text(changed)
        supervisor._looked_at_file = 0.0
        supervisor._look_at_file()
        told = json.loads(supervisor.jobs["driver"])["pipelines"] if supervisor.drivers else []
        return [(one["name"], one["select"]) for one in told]

    assert followed(text.replace("COUNT", "SUM")) == [("totals", ["SUM(/id) AS /n"])]
    more = text + '[[view]]\nname = "more"\nsource = "orders"\nselect = "MAX(/id) AS /n"\nengine = "spark"\n'
    assert followed(more)[1:] == [("more", ["MAX(/id) AS /n"])]
    assert lines == ["penstock: the settings have changed, and the pipelines follow"] * 2
    followed(more.replace('"spark"', '"server"'))  # the server reads its own views when it starts
    assert lines[2].endswith("they hold after a restart of penstock up")
    assert supervisor.drivers == {}

    [orders] = supervisor.settings.queue
    assert (orders.name, [one.name for one in supervisor.settings.view]) == ("orders", [])


def test_changed_settings_of_spark_start_the_driver_again(tmp_path: Path) -> None:
    """All of [spark] is of the driver's process but its pipelines and who they are; a folder of checkpoints stays."""
    file, lines = tmp_path / "penstock.toml", list[str]()
    pipeline = """
[[pipeline]]
name = "p"
from = { topic = "t", columns = "id BIGINT" }
sql = "SELECT id FROM input"
to = [{ topic = "out" }]
"""

    def text(spark: str = "", more: str = "") -> str:
        return f'server.data = "{tmp_path / "data"}"\n[spark]\n{spark}\n{pipeline}{more}'

    file.write_text(text())
    supervisor = Supervisor(
        load_text(text()), ready_file=None, say=lines.append, file=file, reload=lambda: load_text(file.read_text()),
        driver=(sys.executable, "-c", "import sys; sys.stdin.buffer.read()"), pause=(0.0, 0.0),
    )  # fmt: skip
    supervisor.folder.mkdir(parents=True)
    supervisor.ready = {"flight": "127.0.0.1:1"}

    def followed(changed: str) -> tuple[int | None, dict[str, Any]]:
        file.write_text(changed)
        supervisor._looked_at_file = 0.0
        supervisor._look_at_file()
        if supervisor.drivers["driver"].due():
            supervisor._start_driver("driver")
        return supervisor.drivers["driver"].pid, json.loads(supervisor.jobs["driver"])

    try:
        first, job = followed(text(more="\n"))
        assert (first, job["openlineage"], job["memory"]) == (supervisor.drivers["driver"].pid, None, "1024m")
        more = pipeline.replace('"p"', '"q"')
        same, job = followed(text(more=more))
        assert same == first, "a pipeline more is followed by the driver that runs"
        assert len(job["pipelines"]) == 2
        lines.clear()
        second, job = followed(text('openlineage = "file:/tmp/lineage"\nmemory = "512MiB"', more))
        assert second not in (None, first)
        assert (job["openlineage"], job["memory"]) == ("file:/tmp/lineage", "512m")
        assert lines[-1] == (
            "penstock: [spark] memory, openlineage changed: the pipelines' driver starts again, and its pipelines go "
            "on from their checkpoints"
        )
        supervisor._tell_of_gone = lambda gone: None  # type: ignore[method-assign]  # there is no server
        for spark, name in (('master = "local[1]"', "master"), ('url = "penstock://h:1/"', "url")):
            before, (after, job) = supervisor.drivers["driver"].pid, followed(text(spark))
            assert after not in (None, before), spark
            assert f'{name} = "{job[name]}"' == spark
        before, (after, job) = after, followed(text('conf = { "spark.app.name" = "a" }'))
        assert (after not in (None, before), job["conf"]) == (True, {"spark.app.name": "a"})
        lines.clear()
        same, job = followed(text(f'conf = {{ "spark.app.name" = "a" }}\ncheckpoints = "{tmp_path / "other"}"'))
        assert (same, job["folder"]) == (after, str(supervisor.folder))
        assert "[spark] checkpoints is " in lines[0]
        assert "holds after a restart of penstock up" in lines[0]
        followed(text(f'conf = {{ "spark.app.name" = "a" }}\ncheckpoints = "{tmp_path / "other"}"', "\n"))
        assert "checkpoints" not in "".join(lines[1:]), "it is said once"
    finally:
        supervisor._stop_drivers(list(supervisor.drivers))


def test_a_schedule_runs_at_its_times_and_after_failures_waits_for_the_next() -> None:
    wall = 1_000_000_000.0  # 01:46:40 UTC
    done, failing = Query(1, active=False), [NotFound("not yet")] * FAILURES_MAX
    pipeline = Scripted(done, *failing, Query(2), schedule="0 2 * * * Z")
    one = Running(pipeline, wall=lambda: wall)  # type: ignore[arg-type]
    assert (one.state, one.status()["next_try"]) == ("scheduled", "2001-09-09T02:00:00Z")
    begun = one.next_try
    one.look(None, begun - 1)
    assert one.starts == 0
    one.look(None, begun)
    assert one.state == "running"
    one.look(None, begun + 1)
    assert (one.state, one.figures.rows, one.next_try) == ("scheduled", 10, begun + 1 + 800)
    for _ in range(FAILURES_MAX):
        one.look(None, one.next_try)
    assert (one.state, one.error, one.starts) == ("scheduled", "not yet", 1 + FAILURES_MAX)


def test_a_single_run_ends() -> None:
    good = Running(Scripted(Query(1, active=False), schedule="every 1h"), once=True)  # type: ignore[arg-type]
    assert (looked(good, 3).state, good.is_over, good.starts) == ("done", True, 1)
    bad = Running(Scripted(NotFound("no message yet")), once=True)  # type: ignore[arg-type]
    assert (looked(bad, 3).state, bad.is_over, bad.failure and bad.failure.exit_status) == ("failed", True, 1)


def test_one_driver_a_folder(tmp_path: Path) -> None:
    pipeline = {"name": "p", "from": {"queue": "q"}, "to": [{"topic": "t"}], "sql": "SELECT 1"}
    job = {"url": "penstock://localhost", "folder": str(tmp_path), "pipelines": [pipeline]}
    started, other = threading.Event(), Driver(job)
    first = Driver(job)
    first._run = lambda: (started.set(), first.stopping.wait(30))  # type: ignore[method-assign,assignment]
    thread = threading.Thread(target=first.run)
    thread.start()
    try:
        assert started.wait(30)
        with pytest.raises(DataFolderInUse, match=f"process {os.getpid()} runs pipeline p of"):
            other.run()
    finally:
        first.stopping.set()
        thread.join()


def plant(tmp_path: Path, **listen: str) -> Supervisor:
    doors = {"amqp": "off", "http": "off", "flight": "127.0.0.1:0", **listen}
    settings = load_mapping({"server": {"data": str(tmp_path / "data")}, "listen": doors})
    return Supervisor(settings, ready_file=str(tmp_path / "ready.json"), say=print, pause=(0.01, 0.1))


def until(what: Any) -> Any:
    """The first true answer."""
    event, deadline = threading.Event(), time.monotonic() + 60
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        event.wait(0.02)
    raise AssertionError("nothing happened")


def test_a_server_that_dies_comes_back_at_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    supervisor = plant(tmp_path)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        ready = until(lambda: supervisor.ready)
        os.kill(int(ready["pid"]), signal.SIGKILL)
        again = until(
            lambda: supervisor.ready if supervisor.ready and supervisor.ready["pid"] != ready["pid"] else None
        )
        assert again["flight"] == ready["flight"]
        told = until(lambda: _told(tmp_path / "ready.json", again["pid"]))
        assert (told["pid"], told["driver_pid"]) == (os.getpid(), None)
    finally:
        supervisor.stopping.set()
        thread.join()
    assert supervisor.server.process is None


def _told(path: Path, server: int) -> dict[str, Any] | None:
    told: dict[str, Any] = json.loads(path.read_text())
    return told if told["server_pid"] == server else None


def test_a_server_that_cannot_start_ends_it_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        supervisor = plant(tmp_path, amqp=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(SystemExit) as caught:
            supervisor.run()
    assert caught.value.code == SettingsError.exit_status


def test_a_server_with_doors_with_tls_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Driver, `up` itself and `doctor` find it without being told of a CA; nothing here needs Spark.

    The driver is a process before there is a server, and is given its job once, when there is one.
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    files = Files(tmp_path / "tls", hosts=("localhost",))
    pipeline = {"name": "p", "sql": "SELECT id FROM input", "from": {"topic": "t", "columns": "id BIGINT"}}
    settings = load_mapping(
        {
            "server": {"data": str(tmp_path / "data")},
            "listen": {"amqp": "off", "http": "off", "flight": "off", "flight_tls": "127.0.0.1:0"},
            "tls": {"certificate": files.certificate, "key": files.key},
            "pipeline": [{**pipeline, "to": [{"topic": "out"}]}],
        }
    )
    lines, given = list[str](), tmp_path / "given"
    idle = (sys.executable, "-c", f"import sys; [open({str(given)!r}, 'ab').write(line) for line in sys.stdin.buffer]")
    supervisor = Supervisor(settings, ready_file=None, say=lines.append, pause=(0.01, 0.1), driver=idle)
    starts, begin = list[object](), supervisor._start_driver
    supervisor._start_driver = lambda name: (starts.append(supervisor.ready), begin(name))[1]  # type: ignore[method-assign]
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        job = json.loads(until(lambda: supervisor.jobs.get("driver")))
        assert job["url"].startswith("penstocks://localhost:")
        assert Remote(Where(job["url"], job["user"], job["password"])).act("streams") == {"streams": []}
        supervisor._tell_of_gone(["p"])
        found = {one.name: one for one in examine(supervisor.settings)}
        assert found["streams"] == ("streams", "good", "0, none of a pipeline that is gone", "")
    finally:
        supervisor.stopping.set()
        thread.join()
    assert lines == []
    assert starts == [None]
    assert json.loads(given.read_bytes()) == job


WITHOUT_A_JOB = """
import os, signal
from penstock.spark.pipelines import driver

class Inbox:
    def __init__(self, descriptor, gone): pass
    def first(self): os.kill(os.getpid(), signal.SIGTERM)

driver.Inbox = Inbox
driver.main()
"""


def test_a_driver_without_a_job_ends_when_it_is_told_to() -> None:
    """Its server may never begin."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_A_JOB], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, b"")


def test_pipelines_log_in_as_the_first_user(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush\nmore\n")
    settings = load_mapping({"user": [{"name": "etl", "password_file": str(secret)}]})
    assert login(settings) == ("etl", "hush")
    assert login(load_mapping({})) == ("guest", "guest")
    secret.unlink()
    with pytest.raises(SettingsError, match=f"etl: password_file: {secret} cannot be read"):
        login(settings)
