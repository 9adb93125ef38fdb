"""The process of a server: its memory and its collector, signals, the ready file, and what it says as it starts.

Modules are loaded with the descriptors that are kept back, where no others are free: some are first used while the
doors are open and whoever comes may have taken every descriptor that there is, and a module that cannot be read then
would end the server.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from importlib import machinery
from itertools import islice
from pathlib import Path
from types import ModuleType

from penstock.config.load import by_default, chosen
from penstock.config.settings import Settings
from penstock.log import disk as descriptors
from penstock.log.disk import EXHAUSTED, lent
from penstock.log.room import told_of_disk
from penstock.server.app import App, Ready
from penstock.server.base import allocator
from penstock.server.base.progress import Show
from penstock.server.base.rounds import Pulse
from penstock.server.doors.door_process import Spawned
from penstock.server.saying import speaking


class _Source(machinery.SourceFileLoader):
    def get_data(self, path: str) -> bytes:
        return lent(lambda: super(_Source, self).get_data(path))


class _Extension(machinery.ExtensionFileLoader):
    def create_module(self, spec: machinery.ModuleSpec) -> ModuleType:
        def made() -> ModuleType:
            try:
                return super(_Extension, self).create_module(spec)
            except ImportError as error:  # the linker tells it as text alone
                for number in EXHAUSTED:
                    if os.strerror(number) in str(error):
                        raise OSError(number, os.strerror(number), self.path) from error
                raise

        return lent(made)


class _Finder(machinery.FileFinder):
    def find_spec(self, fullname: str, target: ModuleType | None = None) -> machinery.ModuleSpec | None:
        return lent(lambda: super(_Finder, self).find_spec(fullname, target))


def lend_to_modules() -> None:
    """From now on modules in folders are found and read so.  Twice does no harm."""
    if any(getattr(hook, "lends", False) for hook in sys.path_hooks):
        return
    hook = _Finder.path_hook(
        (_Extension, machinery.EXTENSION_SUFFIXES),
        (_Source, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )
    hook.lends = True  # type: ignore[attr-defined]
    at = next(
        (place for place, one in enumerate(sys.path_hooks) if "FileFinder" in getattr(one, "__qualname__", "")),
        len(sys.path_hooks),
    )
    sys.path_hooks.insert(at, hook)
    sys.path_importer_cache.clear()


SETTINGS_SHOWN = 200
"""Lines about settings of either kind at a start, at most: a file may declare thousands of queues."""


def serve(
    settings: Settings,
    *,
    ready_file: str | None = None,
    show: Show | None = None,
    door: Spawned | None = None,
    http: Spawned | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT.  `ready_file` gets JSON once all doors are open.

    show: who looks on while it recovers; without, there is a line a second.  door: Flight's process.  http: HTTP's.
    """
    for name in ASKING:
        signal.signal(name, _heard)  # from the first moment; programs that are run get the usual one back
    descriptors.keep_back()
    lend_to_modules()
    allocator.keep_close(settings.server.memory)
    pulse = Pulse()
    with speaking() as voice, asyncio.Runner(loop_factory=pulse.new_loop) as runner:
        server = App(settings, voice.say, pulse, show)
        server.flight_process, server.http_process = door, http
        runner.run(_serve(server, ready_file))


ASKING = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What tools send to a server that shall go on: to look at files again, or to open a log file anew."""


def _heard(number: int, frame: object) -> None:
    """Nothing: whoever wants files looked at again may say so before there is a server, or to one without TLS."""


async def _serve(server: App, ready_file: str | None) -> None:
    loop = asyncio.get_running_loop()
    starting = loop.create_task(server.start())

    def stop() -> None:
        server.stopping.set()
        starting.cancel()  # nothing, once it has started

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop)
    loop.add_signal_handler(signal.SIGHUP, server.look_again)
    try:
        with told_of_disk(f"server.data {server.settings.server.data}"):
            ready = await starting
    except asyncio.CancelledError:
        if server.stopping.is_set():
            return
        raise
    settle_garbage()
    if ready_file is not None:
        write_whole(ready_file, ready.as_json())
    tell(server, ready)
    await server.stopping.wait()
    await server.stop()
    if server.failure is not None:
        raise server.failure
    if server.cluster is not None and server.cluster.switched:
        sys.exit(server.cluster.lost)  # it is to be started again, and follows then


def tell(server: App, ready: Ready) -> None:
    """What has started, what was set, and what the operator should know."""
    settings, say = server.settings, server.say
    some = chosen(settings)
    for setting, value, origin in some[:SETTINGS_SHOWN]:
        say(f"setting {setting} = {value} ({origin})")
    if len(some) > SETTINGS_SHOWN:
        say(f"{len(some) - SETTINGS_SHOWN} more settings are not the default; /api/overview has all")
    for section, usual in islice(by_default(settings).items(), SETTINGS_SHOWN):
        say(f"setting {section}: {usual} (default)")
    for line in server.keeper.lines():
        say(line)
    if settings.server.sync != "commit":
        say(f"warning: sync = {settings.server.sync!r}: a confirm does not mean that the message is on disk")
    if server.tls is not None and (why := server.tls.complaint()) is not None:
        say(f"warning: {why}")
    doors = ", ".join(f"{name} {address}" for name, address in ready.addresses.items())
    say(
        f"penstock {settings.server.name} is ready: {doors}; "
        f"{ready.recovered_records} records in {ready.recovered_seconds:.2f} s"
    )


def settle_garbage() -> None:
    """Keep the collector of cycles from stopping the loop.

    A full collection walks everything that was imported and every cached batch: 33 ms at first, 100 ms after 200,000
    messages.  Of what was imported 700 objects are garbage, and looking for them would take 30 ms of the start: all is
    set aside, and full collections become rare.  A collection of the young ones takes 0.15 ms for each thousand of
    them: 25,000 at most, where half a million after ten thousand declares took 77 ms.
    """
    gc.freeze()
    gc.set_threshold(5_000, 3, 40_000)


def write_whole(name: str, content: bytes) -> None:
    """A file that appears with its whole content or not at all."""
    part = Path(f"{name}.{os.getpid()}")
    descriptors.lent(lambda: part.write_bytes(content))
    part.replace(name)
