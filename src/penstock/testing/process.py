"""A real server for a test: a process of its own, on free ports, with a data folder it keeps from start to start; and
settings as a test gives them: a mapping, TOML text, or the path of a settings file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias, cast

import orjson
import tomli_w

from penstock.errors import InvalidArgument, SettingsError, Unavailable, told_as

if TYPE_CHECKING:
    from penstock.config.settings import Settings


Config: TypeAlias = "Mapping[str, object] | str | os.PathLike[str] | None"
"""The structure of the settings file as a mapping, the text of one, or where one is; None: all defaults."""


def is_text(config: str) -> bool:
    """Whether a str is TOML rather than a path: it is empty, or has what no path needs."""
    return not config.strip() or "\n" in config or "=" in config or config.lstrip().startswith(("[", "#"))


def load(config: Config) -> Settings:
    """The settings, checked as the server checks them.  The environment has no say in a test.

    Raises SettingsError for what cannot be used, keys of later versions among it.
    """
    from penstock.config.load import load_file, load_mapping, load_text

    config = checked(config)
    if config is None:
        return load_mapping({})
    if isinstance(config, Mapping):
        return load_mapping(config)
    if isinstance(config, str) and is_text(config):
        return load_text(config)
    return load_file(os.fspath(config))


def checked(config: Config) -> Config:
    """Settings as a test gives them.  InvalidArgument for what is none at all, and for keys that are no text."""
    if isinstance(config, Mapping):
        _check_keys(config, "config")
    elif config is not None and not isinstance(config, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] - told here
        raise InvalidArgument(f"config is {config!r}, not a mapping, TOML text or a path")
    return config


def _check_keys(value: object, place: str) -> None:
    """InvalidArgument for a key of a mapping, however deep, that is no text: no settings file has such ones."""
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise InvalidArgument(f"{place} has the key {key!r}, which is not text")
            _check_keys(inner, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(cast("Sequence[object]", value)):
            _check_keys(inner, f"{place}[{number}]")


def as_toml(config: Mapping[str, object]) -> str:
    """The text of a settings file with this content."""
    with told_as(SettingsError, "a settings file cannot hold this: ", instead=(TypeError, ValueError)):
        return tomli_w.dumps(config)


START_S = 30.0
"""A server that is not ready by then is not coming."""

STOP_S = 30.0

_LOOK_S = 0.01


class ServerProcess:
    """`with ServerProcess(folder) as server:`; `folder` gets the data, the settings, and what the server printed."""

    def __init__(self, folder: str | os.PathLike[str], config: Config = None, *, sync: str | None = None) -> None:
        """Nothing runs before `start`.  `sync` overrides the settings'."""
        self.folder = Path(folder)
        self.data = self.folder / "data"
        self._config = checked(config)
        self._sync = sync
        self._process: subprocess.Popen[bytes] | None = None
        self._addresses: dict[str, str | None] = {"amqp": "127.0.0.1:0", "http": "127.0.0.1:0", "flight": "127.0.0.1:0"}
        self.recovered_records = 0
        self.recovered_seconds = 0.0

    # -- addresses

    @property
    def amqp_url(self) -> str:
        """For AMQP clients, as `guest` in vhost `/`."""
        return f"amqp://guest:guest@{self._address('amqp')}/%2F"

    @property
    def http_url(self) -> str:
        """The address of the HTTP door, for browsers and `curl`."""
        return f"http://{self._address('http')}"

    @property
    def flight_url(self) -> str:
        """The address of the Flight door as `guest`, for `penstock.connect`."""
        return f"penstock://guest:guest@{self._address('flight')}"

    @property
    def pid(self) -> int:
        """The process.  Raises Unavailable when none runs."""
        return self._running().pid

    def _address(self, door: str) -> str:
        self._running()
        address = self._addresses[door]
        if address is None:
            raise Unavailable(f"this server has no {door} door")
        return address

    # -- life

    def start(self) -> Self:
        """Start, and wait until all doors are open; the ports are those of the start before.

        Raises Unavailable with what the server printed when it ends instead, or is not ready after 30 seconds.
        """
        if self._process is not None:
            raise Unavailable("the server runs already")
        self.folder.mkdir(parents=True, exist_ok=True)
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "penstock", "serve", *self._settings_file(), "--data", str(self.data)]
        command += ["--ready-file", str(ready)]
        for door, address in self._addresses.items():
            command += [f"--{door}", address or "off"]
        if self._sync is not None:
            command += ["--sync", self._sync]
        source = str(Path(__file__).resolve().parents[__name__.count(".")])
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        with (self.folder / "server.log").open("ab") as said:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path},
            )
        for _ in range(round(START_S / _LOOK_S)):
            try:
                status = process.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                if ready.exists():
                    break
            else:
                raise Unavailable(f"the server ended with status {status}:\n{self.output()[-4000:]}")
        else:
            process.kill()
            process.wait()
            raise Unavailable(f"the server was not ready after {START_S:g} s:\n{self.output()[-4000:]}")
        said_ready = cast("dict[str, object]", orjson.loads(ready.read_bytes()))
        for door in self._addresses:
            self._addresses[door] = cast("str | None", said_ready[door])
        recovered = cast("dict[str, float]", said_ready["recovered"])
        self.recovered_records, self.recovered_seconds = int(recovered["records"]), recovered["seconds"]
        self._process = process
        return self

    def stop(self) -> int:
        """SIGTERM, and wait; the exit status.  TimeoutExpired for one that takes over 30 seconds, which is killed."""
        process, self._process = self._running(), None
        process.terminate()
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def kill(self) -> None:
        """SIGKILL: what the process held in memory is gone.  `start` recovers on the same data and ports."""
        process, self._process = self._running(), None
        process.kill()
        process.wait()

    def restart(self) -> Self:
        """Stop cleanly and start again."""
        self.stop()
        return self.start()

    def output(self) -> str:
        """What all starts so far have printed."""
        return (self.folder / "server.log").read_text(errors="replace")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise Unavailable("the server does not run")
        return self._process

    def _settings_file(self) -> list[str]:
        config = self._config
        if config is None or (isinstance(config, Mapping) and not config):
            return []
        if isinstance(config, Mapping):
            text = as_toml(config)
        elif isinstance(config, str) and is_text(config):
            text = config
        else:
            return [os.fspath(config)]
        file = self.folder / "penstock.toml"
        file.write_text(text, encoding="utf-8")
        return [str(file)]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop()
