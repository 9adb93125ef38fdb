"""`penstock up`: the server and the drivers of its pipelines as processes, each started again when it dies.

The server comes first; when it is started again it keeps its addresses, and the pipelines wait for it.  A driver's
own output, with whatever Spark prints, goes to `<data>/spark/driver.log`.  Pipelines with resources of their own have a
driver of their own.  When the settings file changes, so do the pipelines: of `[spark]` everything is taken but the
folder of checkpoints, which people move while nothing runs; the server reads its own settings when it starts.  A stop
ends the pipelines first, then the server.

Half of what a driver of pipelines costs until its first results is the loading of classes (`spark.sessions`).  Java
keeps them in an archive once it was asked to, which takes a minute of CPU and some hundred megabytes of memory.  So it
is a process of its own that everybody else goes before, ten minutes after the drivers have begun: what lives shorter, a
trial or a test, does not pay for a start that never comes.  It looks by itself whether there is an archive already.
Where there is no memory for it now it is put off.  One that fails is tried again an hour later, twice: on a machine
that is busy with others Spark may not get the process of Python that it waits ten seconds for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from penstock.cli.child_process import PAUSE_S, Child, Say, parcel
from penstock.cli.driver_jobs import (
    NO_DOOR,
    SHARED,
    Door,
    address_here,
    door_of,
    folder_of,
    groups,
    job,
    orphans,
    sweep,
    url_for,
)
from penstock.cli.driver_jobs import login as login
from penstock.errors import PenstockError, SettingsError, Unavailable
from penstock.server.base.allowed import Machine
from penstock.spark.pipelines.folders import line_of, of_process
from penstock.spark.remote import Remote, Where
from penstock.spark.sessions import find_java, takes_archive

AFTER_S = 600.0
"""How long drivers have run before it is begun, and before memory is looked at again."""

AGAIN_S, TRIES = 3600.0, 3
"""After one that failed; and how many there are in all."""

MEMORY_BYTES = 2 << 30
"""What has to be free: its Java takes half of it, and the drivers may grow meanwhile."""

MAKER = (sys.executable, "-m", "penstock.spark.class_archive", "--beside")


def is_wanted(spark: Any) -> bool:
    """Whether drivers of these settings (`[spark]`) would take an archive that is there."""
    return bool(spark.class_archive) and takes_archive({"spark.master": spark.master, **spark.conf})


class ClassArchiving:
    """At most one process at a time, until there is an archive."""

    def __init__(
        self,
        folder: Path,
        say: Say,
        *,
        command: Sequence[str] = MAKER,
        memory_left: Callable[[], int | None] | None = None,
    ) -> None:
        """folder: for what it and its Java print."""
        self._log = folder / "class_archive.log"
        self._say = say
        self._command = command
        self._memory_left = memory_left or Machine().memory_left
        self._environ = dict(os.environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._due = time.monotonic() + AFTER_S
        self._left = TRIES

    def look(self, now: float, *, wanted: bool) -> None:
        """One round.  now: on the clock of `time.monotonic`.  wanted: drivers run that would take an archive."""
        if self._process is not None:
            if (status := self._process.poll()) is not None:
                self._ended(status, now)
        elif not wanted:
            self._due = max(self._due, now + AFTER_S)
        elif self._left and now >= self._due:
            self._due = now + AFTER_S
            left = self._memory_left()
            if left is None or left >= MEMORY_BYTES:
                self._begin()

    def stop(self) -> None:
        """End it at once, with its Java: what it has made by then is nothing."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._close()

    def _begin(self) -> None:
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self._environ,
                    start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            self._failed(str(error))

    def _ended(self, status: int, now: float) -> None:
        self._close()
        if status:
            self._due = now + AGAIN_S
            self._failed(f"see {self._log}")
        else:
            self._left = 0

    def _failed(self, why: str) -> None:
        if self._left == TRIES:
            self._say(f"penstock: the archive of Spark's classes is not made, and starts are as they were: {why}")
        self._left -= 1

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None


TAKEN = ("pipeline", "spark", "view")


def taken(present: Any, given: Any, fresh: Any) -> tuple[Any, list[str]]:
    """The settings in force from now on, and sentences about what of the changes has to wait.

    present: in force so far.  given, fresh: the file as it was read before, and now (`config.settings.Settings`).
    """
    sections = cast("dict[str, object]", cast("Any", type(fresh)).model_fields)
    others = [name for name in sections if name not in TAKEN]
    lines: list[str] = []
    if own_views(fresh) != own_views(given) or any(getattr(fresh, name) != getattr(given, name) for name in others):
        lines.append("settings of the server have changed too; they hold after a restart of penstock up")
    kept = present.spark.checkpoints
    if fresh.spark.checkpoints not in (kept, given.spark.checkpoints):
        lines.append(
            f"[spark] checkpoints is {fresh.spark.checkpoints or 'the default'} now, which holds after a restart of "
            f"penstock up: move what is in {kept or 'the default'} there before it, or pipelines over topics begin anew"
        )
    spark = fresh.spark.model_copy(update={"checkpoints": kept})
    views = (*own_views(present), *(one for one in fresh.view if one.engine == "spark"))
    return present.model_copy(update={"pipeline": fresh.pipeline, "spark": spark, "view": views}), lines


def own_views(settings: Any) -> tuple[Any, ...]:
    """The views that the server computes by itself, which it reads when it starts."""
    return tuple(one for one in settings.view if one.engine == "server")


BEAT_S = 0.1
READY_S = 600.0
"""How long a server may recover before it is ready."""

LOOK_AT_FILE_S = 1.0
"""How often the settings file is looked at."""

STOP_S = (20.0, 120.0)
"""How long the driver and the server may take to stop before they are killed."""

TELL_S = 2.0
"""How long a server may take to hear which pipelines there are."""

DRIVER = (sys.executable, "-m", "penstock.spark.pipelines.driver")
SERVER = (sys.executable, "-m", "penstock.cli.child_process")


def say_aloud(text: str) -> None:
    """One line to standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Supervisor:
    """Server and driver of one settings file."""

    def __init__(
        self,
        settings: Any,
        *,
        ready_file: str | None,
        say: Say = say_aloud,
        driver: Sequence[str] = DRIVER,
        pause: tuple[float, float] = PAUSE_S,
        file: Path | None = None,
        reload: Callable[[], Any] | None = None,
        spark_log: bool = False,
    ) -> None:
        """`settings`: `config.settings.Settings`.  `driver`: the command that runs the jobs of its standard input.

        file, reload: where the settings came from, and how they are read again when it changes.
        spark_log: Spark's own log goes into the drivers' files too.
        """
        self.settings = self.as_given = settings
        self.ready_file = ready_file
        self.say = say
        self.stopping = threading.Event()
        self.folder = folder_of(settings)
        self.server = Child("server", say, pause)
        self.drivers: dict[str, Child] = {}
        self.jobs: dict[str, bytes] = {}  # by driver: what it is given
        self.archiving = ClassArchiving(self.folder, say)
        self.ready: dict[str, Any] | None = None
        self._driver_command = driver
        self._server_ready = self.folder / "server.json"
        self._waiting_since = 0.0
        self._pause = pause
        self._file, self._reload = file, reload
        self._file_text = b"" if file is None else file.read_bytes()
        self._looked_at_file = time.monotonic()
        self._spark_log = spark_log
        self._path = [str(Path.cwd()), *([str(file.absolute().parent)] if file is not None else [])]
        if groups(settings) and door_of(settings) is None:
            raise SettingsError(NO_DOOR)
        self._refuse_unreachable(settings)

    def _refuse_unreachable(self, settings: Any) -> None:
        """SettingsError for a cluster whose executors would not reach the server."""
        for pipelines in groups(settings).values():
            url_for(settings, pipelines, self._door())

    def run(self) -> None:
        """Until `stopping` is set.  SystemExit with the server's status when its first start fails."""
        if groups(self.settings):
            find_java()
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.folder, time.time())
        try:
            self._start_server()
            for name in groups(self.settings):  # it loads its code meanwhile, and waits for its job
                self._start_driver(name)
            while not self.stopping.is_set():
                self.look()
                self.stopping.wait(BEAT_S if self.ready is not None else 0.02)
        finally:
            self.archiving.stop()
            self._stop_drivers(list(self.drivers))
            self.server.stop(STOP_S[1])

    @property
    def driver(self) -> Child | None:
        """The driver of pipelines that ask for no resources of their own."""
        return self.drivers.get(SHARED)

    def _stop_drivers(self, names: Sequence[str]) -> None:
        stops = [threading.Thread(target=self.drivers[name].stop, args=(STOP_S[0],)) for name in names]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()

    def look(self) -> None:
        """One round: who has died, who may start, who is ready."""
        status = self.server.ended()
        if status is not None:
            first = self.server.starts == 1 and self.ready is None
            self.ready = None
            self._server_ready.unlink(missing_ok=True)  # it tells of the one that is dead
            if first:
                raise SystemExit(status if status > 0 else 1)
            self.say(f"penstock: the server ended ({told(status)}) and is started again")
        if self.server.due():
            self._start_server()
        if self.ready is None and self.server.pid is not None:
            self._look_for_ready()
        self._look_at_file()
        for name, driver in self.drivers.items():
            status = driver.ended()
            if status is not None:
                self.say(f"penstock: {self._called(name)} ended ({told(status)}) and is started again")
            if driver.due() and (self.ready is not None or driver.starts):
                self._start_driver(name)
        self._look_at_archive()

    def _look_at_archive(self) -> None:
        run = bool(self.drivers) and all(driver.pid is not None for driver in self.drivers.values())
        self.archiving.look(time.monotonic(), wanted=run and is_wanted(self.settings.spark))

    def _look_at_file(self) -> None:
        """Take pipelines from the settings file when it has changed; the server keeps what it started with."""
        now = time.monotonic()
        if (
            self._file is None
            or self._reload is None
            or self.ready is None
            or now - self._looked_at_file < LOOK_AT_FILE_S
        ):
            return
        self._looked_at_file = now
        try:
            text = self._file.read_bytes()
        except OSError:
            return  # an editor is at it
        if text == self._file_text:
            return
        self._file_text = text
        try:
            fresh = self._reload()
            if groups(fresh):
                find_java()
                if door_of(self.settings) is not None:
                    self._refuse_unreachable(fresh)
        except (PenstockError, OSError) as error:
            self.say(f"penstock: the changed settings are not taken: {error}")
            return
        if groups(fresh) and door_of(self.settings) is None:
            self.say(f"penstock: {NO_DOOR}: start again with one of them on")
            return
        before = names_of(self.settings)
        self.settings, lines = taken(self.settings, self.as_given, fresh)
        self.as_given = fresh
        for line in lines:
            self.say(f"penstock: {line}")
        self.say("penstock: the settings have changed, and the pipelines follow")
        self._hand_out()
        self._tell_of_gone(sorted(before - names_of(self.settings)))

    def _door(self) -> Door:
        """Where drivers come in; for who has pipelines, who is refused without one."""
        door = door_of(self.settings, self.ready)
        assert door is not None
        return door

    def _tell_of_gone(self, gone: Sequence[str]) -> None:
        """The server learns which pipelines are no more; people, what is still held for them."""
        if not gone:
            return
        try:
            user, password = login(self.settings)
            server = Remote(Where(address_here(self.settings, self._door()), user, password, TELL_S))
            server.act("pipeline_leave", pipelines=gone)
            left = [one for one in server.act("streams")["streams"] if one["pipeline"] in gone]
        except PenstockError as error:
            self.say(f"penstock: the server is not told that {', '.join(gone)} are gone: {error}")
            return
        for line in orphans(left):
            self.say(f"penstock: {line}")

    def _start_server(self) -> None:
        self._server_ready.unlink(missing_ok=True)
        self.server.start(SERVER, parcel(self.settings, str(self._server_ready)))
        self._waiting_since = time.monotonic()

    def _look_for_ready(self) -> None:
        try:
            found: Any = json.loads(self._server_ready.read_bytes())
        except FileNotFoundError:
            if time.monotonic() - self._waiting_since > READY_S:
                raise Unavailable(f"the server was not ready within {READY_S:g} s") from None
            return
        self.ready = cast("dict[str, Any]", found)
        self._keep_addresses(self.ready)
        self._hand_out()
        self._tell_ready()

    def _keep_addresses(self, ready: dict[str, Any]) -> None:
        """A server that is started again listens where the first one did, also where it had a port picked for it."""
        listen = self.settings.listen
        kept: dict[str, object] = {}
        for name in listen.doors():
            present, bound = getattr(listen, name), ready.get(name)
            if present is not None and bound is not None and not present.port:
                kept[name] = present._replace(port=int(str(bound).rpartition(":")[2]))
        if kept:
            self.settings = self.settings.model_copy(update={"listen": listen.model_copy(update=kept)})

    def _hand_out(self) -> None:
        """Tell each driver its pipelines; first end those that have none any more, or should be another process."""
        wanted = groups(self.settings)
        gone = [name for name in self.drivers if name not in wanted]
        self._stop_drivers(gone)
        for name in gone:
            del self.drivers[name], self.jobs[name]
        anew: list[str] = []
        for name, pipelines in wanted.items():
            url = url_for(self.settings, pipelines, self._door())
            made = job(self.settings, pipelines, name, url, path=self._path, spark_log=self._spark_log)
            driver = self._driver(name)
            before, self.jobs[name] = self.jobs.get(name), line_of(made)
            if before == self.jobs[name]:
                continue
            if before is None:
                driver.give(self.jobs[name])
            elif changed := of_process(json.loads(before), json.loads(self.jobs[name])):
                self.say(
                    f"penstock: [spark] {', '.join(changed)} changed: {self._called(name)} starts again, and its "
                    "pipelines go on from their checkpoints"
                )
                anew.append(name)
            else:
                driver.give(self.jobs[name])
        self._stop_drivers(anew)  # the next look starts them with what they should be given

    def _driver(self, name: str) -> Child:
        return self.drivers.setdefault(name, Child("driver", self.say, self._pause))

    @staticmethod
    def _called(name: str) -> str:
        return "the pipelines' driver" if name == SHARED else f"driver {name} of pipelines"

    def _start_driver(self, name: str) -> None:
        log = self.folder / (f"{SHARED}.log" if name == SHARED else f"{SHARED}-{name}.log")
        self._driver(name).start(self._driver_command, self.jobs.get(name, b""), log)
        self._tell_ready()

    def _tell_ready(self) -> None:
        if self.ready is None or self.ready_file is None:
            return
        driver = self.driver
        told = {
            **self.ready,
            "pid": os.getpid(),
            "server_pid": self.server.pid,
            "driver_pid": driver.pid if driver else None,
        }
        aside = f"{self.ready_file}.{os.getpid()}"
        Path(aside).write_text(json.dumps(told))
        os.replace(aside, self.ready_file)


def names_of(settings: Any) -> set[str]:
    """Pipelines, and views that Spark computes, by the names under which it runs them."""
    return {one.name for one in settings.pipeline} | {
        f"view.{one.name}" for one in settings.view if one.engine == "spark"
    }


def told(status: int) -> str:
    """An exit status for people."""
    return f"signal {-status}" if status < 0 else f"status {status}"


def up(
    settings: Any,
    *,
    ready_file: str | None = None,
    say: Say = say_aloud,
    file: Path | None = None,
    reload: Callable[[], Any] | None = None,
    spark_log: bool = False,
) -> None:
    """Run the server and the pipelines of the settings until SIGTERM or SIGINT.

    `ready_file` gets what `serve` writes, with `server_pid` and `driver_pid` beside `pid`, our own.
    Errors: SettingsError without Java; SystemExit with the server's status when its first start fails.
    """
    supervisor = Supervisor(settings, ready_file=ready_file, say=say, file=file, reload=reload, spark_log=spark_log)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, frame: supervisor.stopping.set())
    signal.signal(signal.SIGHUP, lambda number, frame: supervisor.server.hear(number))
    for name in (signal.SIGUSR1, signal.SIGUSR2):  # they mean nothing to a server, and end whoever does not say so
        signal.signal(name, lambda number, frame: None)
    try:
        supervisor.run()
    except PenstockError:
        supervisor.stopping.set()
        raise
