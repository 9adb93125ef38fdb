"""A real standalone cluster of Spark for tests: a master and two workers on this machine, each of which can be killed.

With `hide` a folder is not there for the workers, as the server's is not on another machine: they run where an empty
one lies above it.  That takes a right that root has.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ports import free_ports
from progress import Progress

SOURCE = Path(__file__).resolve().parents[1] / "src"
NODES = {"one": "127.0.0.1", "two": "127.0.0.2"}
"""Their addresses differ, since Spark runs no task twice on one host."""

PATIENCE_S = 120.0
LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": LIGHT,
    "spark.executor.extraJavaOptions": LIGHT,
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # no task begins before both nodes are there
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "1800s",
}
"""What the driver of a small cluster on this machine is given."""


class Cluster:
    """`with Cluster(folder) as cluster:` and `cluster.url`; a node is one core."""

    def __init__(self, folder: Path, hide: Path | None = None) -> None:
        self.folder = folder
        self.host = address()
        self.hide = hide
        [self.port] = free_ports(1)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._starts = 0

    @property
    def url(self) -> str:
        """The master."""
        return f"spark://{self.host}:{self.port}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:  # what has started ends, also at Ctrl-C
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        master = ["org.apache.spark.deploy.master.Master", "--host", self.host, "--port", str(self.port)]
        self._spawn("master", f"exec {shlex.join([self._spark_class(), *master, '--webui-port', '0'])}")
        self.until(self._listens)
        for node in NODES:
            self.start(node)

    def __exit__(self, *exc: object) -> None:
        for name in list(self.processes):
            self.kill(name)

    def start(self, node: str) -> None:
        """A worker, and wait until the master has it."""
        self._starts += 1
        work = self.folder / f"work-{node}-{self._starts}"
        worker = ["org.apache.spark.deploy.worker.Worker", "--host", NODES[node], "--webui-port", "0"]
        worker += ["--cores", "1", "--memory", "1g", "--work-dir", str(work), self.url]
        command = f"exec {shlex.join([self._spark_class(), *worker])}"
        if self.hide is not None:
            inner = f"mount -t tmpfs none {shlex.quote(str(self.hide))} && {command}"
            command = f"exec unshare --mount sh -c {shlex.quote(inner)}"
        log = self._spawn(node, command)
        self.until(lambda: "Successfully registered with master" in log.read_text(errors="replace"))

    def kill(self, name: str) -> None:
        """kill -9 of a node, its executors and their Python with it."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)

    def _spawn(self, name: str, command: str) -> Path:
        log = self.folder / f"{name}-{self._starts}.log"
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
        environ.pop("PYTHONPATH", None)
        environ |= {
            "PENSTOCK_NODE": name,
            "SPARK_LOCAL_IP": NODES.get(name, self.host),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": LIGHT,
        }
        with log.open("wb") as output:
            self.processes[name] = subprocess.Popen(
                ["sh", "-c", command], stdout=output, stderr=output, env=environ, start_new_session=True
            )
        return log

    def _spark_class(self) -> str:
        import pyspark

        return str(Path(pyspark.__file__).parent / "bin" / "spark-class")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0

    def until(self, what: Callable[[], Any], patience: float = PATIENCE_S) -> Any:
        """The first true answer; what the processes have said when there is none and they do nothing any more."""
        event, progress = threading.Event(), Progress(patience)
        while not (found := what()):
            if progress.is_over():
                break
            event.wait(0.1)
        else:
            return found
        logs = [f"{path}:\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(self.folder.glob("*.log"))]
        raise AssertionError(f"nothing was done for {patience:g} s\n" + "\n".join(logs))


def address() -> str:
    """One of this machine that does not mean the machine of whoever uses it; loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: it is only asked where from
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def may_hide() -> bool:
    """Whether a process may have an empty folder where another sees files."""
    command = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def bare_python(folder: Path) -> Path:
    """A Python with everything that is installed here but Penstock, as on a node that nobody has put it on."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [site] = folder.glob("lib/python3*/site-packages")
    import numpy

    (site / "others.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")  # its own .pth files are not read again
    return folder / "bin" / "python"
