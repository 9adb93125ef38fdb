"""Not one descriptor is left to others: the log goes on with those that are kept for it, and without them, too."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import pika
import pytest

from forked import of_the_product, ran
from live_server import LiveServer
from penstock.errors import Unavailable
from penstock.log.disk import KEPT
from penstock.server.base.allowed import DESCRIPTORS_LEAST as LEAST
from penstock.server.base.allowed import bound_on_addresses, no_door

SETTINGS = """
[log]
segment = "64KiB"
checkpoint_bytes = "64KiB"
retention = { bytes = "256KiB" }
"""


class Squeezed(LiveServer):
    """Its limit can be taken away while it runs."""

    loads = True  # what is loaded late needs descriptors
    http = "127.0.0.1:0"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "settings.toml").write_text(SETTINGS)
        super().__init__(folder, [str(folder / "settings.toml")], flight=True)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def squeeze(self, *, kept: bool = True) -> tuple[int, int]:
        """No number that is free may be taken from now on; kept: but by the log.  The limits as they were."""
        before = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        used = {int(one) for one in os.listdir(f"/proc/{self.pid}/fd")}
        first = next(number for number in range(len(used) + 1) if number not in used)
        if not kept:
            assert first > KEPT
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (first if kept else first - KEPT, before[1]))
        return before

    def release(self, limits: tuple[int, int]) -> None:
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, limits)

    def wait_for(self, what: Callable[[], bool], why: str) -> None:
        until = time.monotonic() + 60
        while not what():
            assert self.process is not None
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < until, f"{why}:\n{self.output()}"
            time.sleep(0.02)

    def segments(self) -> set[str]:
        return {one.name for one in (self.data / "log").glob("*.arrows")}


class Crowded(LiveServer):
    """Others take every descriptor while it starts."""

    loads = True
    program = (str(Path(__file__).parents[1] / "crowded_server.py"),)
    http = "127.0.0.1:0"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Squeezed]:
    with Squeezed(tmp_path) as server:
        maps = Path(f"/proc/{server.pid}/maps")
        server.wait_for(lambda: "_re2" in maps.read_text(), "it did not load what it uses first")
        server.wait_for(lambda: "pyarrow/_compute" in maps.read_text(), "it did not load what it uses first")
        yield server


def publisher(server: Squeezed) -> Callable[[int], None]:
    """Publishes so many messages, each confirmed, on a connection that is there before the squeeze."""
    channel = server.connect(heartbeat=0).channel()
    channel.confirm_delivery()
    channel.queue_declare("kept", durable=True)
    lasting = pika.BasicProperties(delivery_mode=2)

    def publish(count: int) -> None:
        for _ in range(count):
            channel.basic_publish("", "kept", os.urandom(8000), lasting, mandatory=True)

    return publish


def held(server: Squeezed) -> int:
    return int(server.connect().channel().queue_declare("kept", passive=True).method.message_count)


def test_the_log_begins_new_files_with_what_is_kept_for_it(server: Squeezed) -> None:
    publish, before = publisher(server), server.segments()
    limits = server.squeeze()
    publish(40)
    assert len(server.segments() - before) >= 2
    server.wait_for(lambda: any((server.data / "checkpoints").glob("*")), "upkeep wrote no checkpoint")
    server.release(limits)
    assert held(server) == 40
    server.stop()
    server.start()
    assert held(server) == 40


def test_without_one_descriptor_the_log_goes_on_in_the_file_that_it_has(server: Squeezed) -> None:
    publish = publisher(server)
    publish(1)
    with ExitStack() as stack:
        for _ in range(KEPT):  # the numbers that are kept would be free otherwise
            _have_one_more(server, stack)
        _go_on_without(server, publish)
    publish(20)
    assert len(server.segments()) >= 2, "it begins new files again"
    server.kill()
    server.start()
    assert held(server) == 66


def _have_one_more(server: Squeezed, stack: ExitStack) -> None:
    """A client whose socket is the server's own: AMQP's may be a door's."""
    link = HTTPConnection(*server.ready["http"].rsplit(":", 1))
    stack.callback(link.close)
    link.request("GET", "/api/whoami", headers={"Authorization": f"Basic {b64encode(b'guest:guest').decode()}"})
    assert link.getresponse().read()


def _go_on_without(server: Squeezed, publish: Callable[[int], None]) -> None:
    limits = server.squeeze(kept=False)
    publish(40)
    server.wait_for(lambda: "Too many open files" in server.output(), "upkeep did not try")
    publish(5)
    server.release(limits)
    assert held(server) == 46


def test_whoever_takes_all_descriptors_during_a_start_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules that are loaded then, the log and the ready file have those that are kept."""
    monkeypatch.setenv("CROWDED_GO", str(tmp_path / "go"))
    with Crowded(tmp_path, flight=True) as server:
        (tmp_path / "go").touch()
        server.connect().channel().queue_declare("kept", durable=True)
        server.stop()
        assert "Traceback" not in server.output()


FEWEST = 8


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [
        *(
            ("NOFILE", few, f"may open {few} files and sockets, and a server needs {LEAST}")
            for few in (FEWEST, LEAST - 1)
        ),
        (
            "FSIZE",
            1 << 20,
            "a file may have 1 MiB, and one of the log needs 512 MiB, twice log.segment: raise",
        ),
        ("FSIZE", (512 << 20) - 1, "raise the hard limit (ulimit -f, LimitFSIZE=), or lower log.segment"),
        (
            "FSIZE of a small segment",
            8 << 20,
            "a file may have 8 MiB, and one of the log needs 16 MiB, for its reserve:",
        ),
    ],
)
def test_too_little_of_what_a_server_needs_is_refused_in_a_sentence(
    tmp_path: Path, limit: str, value: int, said: str
) -> None:
    """Before anything is begun: none of the doors' processes says anything of its own."""
    small = {"PENSTOCK_LOG__SEGMENT": "1MiB"} if "small" in limit else {}
    limit = f"resource.setrlimit(resource.RLIMIT_{limit.split()[0]}, ({value}, {value}))"
    (program := tmp_path / "limited.py").write_text(
        f"import resource\n{limit}\nfrom penstock.cli.main import main\nmain()\n"
    )
    command, environ = [str(program), "serve", "--data", str(tmp_path / "data")], of_the_product(small)
    if value == FEWEST:  # what is loaded for the sentence has to do with these
        done = subprocess.run(
            [sys.executable, *command], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
    else:
        done = ran(*command, env=small)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        ("ENOSPC", 1, "server.data {data} has no room: No space left on device"),
        ("EFBIG", 1, "server.data {data} has no room: File too large"),
        ("EIO", 5, "server.data {data} fails: Input/output error"),
    ],
)
def test_a_disk_that_takes_nothing_as_a_server_starts_is_named(
    tmp_path: Path, error: str, status: int, said: str
) -> None:
    """Not taken for the output; a member of a cluster that takes over starts so, too."""
    (program := tmp_path / "full.py").write_text(
        "import errno, os\nfrom penstock.cli.main import main\nfrom penstock.log.disk import OsFile\n"
        f"def refused(*_): raise OSError(errno.{error}, os.strerror(errno.{error}))\n"
        "OsFile.pwrite = OsFile.pwritev = refused\nmain()\n"
    )
    data = tmp_path / "data"
    done = ran(str(program), "serve", "--data", str(data), "--amqp", "127.0.0.1:0", "--http", "off", "--flight", "off")
    assert done.returncode == status
    assert said.format(data=data) in done.stderr
    assert "Traceback" not in done.stderr


def test_where_addresses_of_a_process_are_bounded_that_is_told_of_a_door_that_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    ended = no_door(Unavailable("the process of the flight door ended"))
    assert ended.strerror == "the process of the flight door ended: what it said of that stands above"
    monkeypatch.setattr(resource, "getrlimit", lambda _: (700 << 20, 700 << 20))
    assert bound_on_addresses() == "; the addresses of a process end at 700 MiB (ulimit -v, LimitAS=), which may be why"
    assert no_door(Unavailable("it ended")).strerror.endswith("stands above" + bound_on_addresses())
