"""`penstock up`: the server and the driver of its pipelines as two processes, each started again when it dies.

The server comes first; when it is started again it keeps its addresses, and the pipelines wait for it.  The driver's
own output, with whatever Spark prints, goes to `<data>/spark/driver.log`.  A stop ends the pipelines first, then the
server.
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

from penstock.cli.hosting import parcel
from penstock.errors import PenstockError, SettingsError, Unavailable
from penstock.spark.java import find_java
from penstock.spark.pipelines.definition import with_vhost

Say = Callable[[str], object]

BEAT_S = 0.1
READY_S = 600.0
"""How long a server may recover before it is ready."""

PAUSE_S = (0.1, 10.0)
CALM_S = 60.0
"""A process that has run for so long starts again at once when it dies."""

STOP_S = (20.0, 120.0)
"""How long the driver and the server may take to stop before they are killed."""

LOG_BYTES = 16 * 2**20

DRIVER = (sys.executable, "-m", "penstock.spark.pipelines.driver")
SERVER = (sys.executable, "-m", "penstock.cli.hosting")


def say_aloud(text: str) -> None:
    """One line to standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Child:
    """A process that is started again when it dies, after a pause that grows while it keeps dying."""

    def __init__(self, name: str, say: Say, pause: tuple[float, float] = PAUSE_S) -> None:
        """`pause`: seconds before the next start, the first time and at most."""
        self.name = name
        self.say = say
        self.pause = pause
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._pause = 0.0
        self._since = 0.0
        self._next = 0.0

    @property
    def pid(self) -> int | None:
        """Its process id, None while it is down."""
        return self.process.pid if self.process is not None else None

    def start(self, command: Sequence[str], given: bytes = b"", log: Path | None = None) -> None:
        """Start it; its standard input stays open until it stops or we are gone."""
        errors: Any = None
        if log is not None:
            if log.exists() and log.stat().st_size > LOG_BYTES:
                os.replace(log, log.with_suffix(".log.1"))
            errors = log.open("ab")
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for us alone: we stop our children in order
            )
        finally:
            if errors is not None:
                errors.close()
        self.starts += 1
        self._since = time.monotonic()
        pipe: Any = self.process.stdin
        try:
            pipe.write(given)
            pipe.flush()
        except BrokenPipeError:
            pass  # it died at once; the next look finds out

    def ended(self) -> int | None:
        """The exit status if it has died since the last look; the pause before the next start begins."""
        if self.process is None:
            return None
        status = self.process.poll()
        if status is None:
            return None
        self._close()
        now = time.monotonic()
        calm = now - self._since > CALM_S
        self._pause = self.pause[0] if calm or not self._pause else min(self._pause * 2, self.pause[1])
        self._next = now + self._pause
        return status

    def due(self) -> bool:
        """Whether it is down and may be started."""
        return self.process is None and time.monotonic() >= self._next

    def stop(self, patience: float) -> None:
        """SIGTERM, and SIGKILL for its whole session when that does not help."""
        process = self.process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            self.say(f"penstock: the {self.name} does not stop and is killed")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._close()

    def _close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass  # nobody reads what was left in it
        self.process = None


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
    ) -> None:
        """`settings`: `config.settings.Settings`.  `driver`: the command that runs a job file."""
        self.settings = settings
        self.ready_file = ready_file
        self.say = say
        self.stopping = threading.Event()
        data = Path(settings.server.data).absolute()
        self.folder = Path(settings.spark.checkpoints).absolute() if settings.spark.checkpoints else data / "spark"
        self.server = Child("server", say, pause)
        self.driver = Child("driver", say, pause)
        self.ready: dict[str, Any] | None = None
        self._driver_command = driver
        self._server_ready = self.folder / "server.json"
        self._waiting_since = 0.0
        if settings.pipeline and settings.listen.flight is None:
            raise SettingsError("listen.flight is off, and pipelines read and write through it")

    def run(self) -> None:
        """Until `stopping` is set.  SystemExit with the server's status when its first start fails."""
        if self.settings.pipeline:
            find_java()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start_server()
            while not self.stopping.is_set():
                self.look()
                self.stopping.wait(BEAT_S if self.ready is not None else 0.02)
        finally:
            self.driver.stop(STOP_S[0])
            self.server.stop(STOP_S[1])

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
        if not self.settings.pipeline:
            return
        status = self.driver.ended()
        if status is not None:
            self.say(f"penstock: the pipelines' driver ended ({told(status)}) and is started again")
        if self.driver.due() and (self.ready is not None or self.driver.starts):
            self._start_driver()

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
        if self.settings.pipeline:
            self._write_job(str(self.ready["flight"]))
        self._tell_ready()

    def _keep_addresses(self, ready: dict[str, Any]) -> None:
        """A server that is started again listens where the first one did, also where it had a port picked for it."""
        listen = self.settings.listen
        kept: dict[str, object] = {}
        for name in ("amqp", "http", "flight"):
            present, bound = getattr(listen, name), ready.get(name)
            if present is not None and bound is not None and not present.port:
                kept[name] = present._replace(port=int(str(bound).rpartition(":")[2]))
        if kept:
            self.settings = self.settings.model_copy(update={"listen": listen.model_copy(update=kept)})

    @property
    def job_file(self) -> Path:
        """What the driver reads; it holds a password and is ours alone to read."""
        return self.folder / "driver.json"

    def _write_job(self, flight: str) -> None:
        settings = self.settings
        user, password = login(settings)
        host, _, port = flight.rpartition(":")
        if host in ("0.0.0.0", "[::]", "::"):
            host = "127.0.0.1"
        job = {
            "url": with_vhost(f"penstock://{host}:{port}", "/"),
            "user": user,
            "password": password,
            "folder": str(self.folder),
            "master": settings.spark.master,
            "memory": f"{max(256, settings.spark.memory >> 20)}m",
            "conf": dict(settings.spark.conf),
            "pipelines": [one.model_dump(mode="json", by_alias=True) for one in settings.pipeline],
        }
        aside = self.job_file.with_suffix(".part")
        aside.unlink(missing_ok=True)
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(job, file)
        os.replace(aside, self.job_file)

    def _start_driver(self) -> None:
        self.driver.start([*self._driver_command, str(self.job_file), "--with-parent"], log=self.folder / "driver.log")
        self._tell_ready()

    def _tell_ready(self) -> None:
        if self.ready is None or self.ready_file is None:
            return
        told = {**self.ready, "pid": os.getpid(), "server_pid": self.server.pid, "driver_pid": self.driver.pid}
        aside = f"{self.ready_file}.{os.getpid()}"
        Path(aside).write_text(json.dumps(told))
        os.replace(aside, self.ready_file)


def told(status: int) -> str:
    """An exit status for people."""
    return f"signal {-status}" if status < 0 else f"status {status}"


def login(settings: Any) -> tuple[str, str]:
    """The first user of the settings: pipelines act as they."""
    user = settings.users[0]
    if user.password is not None:
        return str(user.name), str(user.password.get_secret_value())
    try:
        return str(user.name), Path(user.password_file).read_text().splitlines()[0]
    except (OSError, IndexError) as error:
        raise SettingsError(f"password_file of user {user.name} cannot be read: {error}") from error


def up(settings: Any, *, ready_file: str | None = None, say: Say = say_aloud) -> None:
    """Run the server and the pipelines of the settings until SIGTERM or SIGINT.

    `ready_file` gets what `serve` writes, with `server_pid` and `driver_pid` beside `pid`, our own.
    Errors: SettingsError without Java; SystemExit with the server's status when its first start fails.
    """
    supervisor = Supervisor(settings, ready_file=ready_file, say=say)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, frame: supervisor.stopping.set())
    try:
        supervisor.run()
    except PenstockError:
        supervisor.stopping.set()
        raise
