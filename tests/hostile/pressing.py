"""One real server, pressed through its Flight door by broken streams and made-up commands, and watched from outside.

Each case comes of one number.  What must hold is the same for all: the server lives, says what is wrong in words of its
own, takes what is valid beside what is broken, and neither memory nor descriptors nor its log grow with what strangers
send.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

import grpc
from pyarrow import flight

from hostile.arrow_streams import CONSUMED, QUEUE, STRANGE, Stream, valid_streams
from hostile.flight_wire import FlightWire, Outcome, action
from hostile.flight_words import made_up
from hostile.mutations import mutated
from hostile.watching import MIB, Bounds, Watched
from live_server import LiveServer

BOUNDS = Bounds(memory=160 * MIB, descriptors=24, lines=0)
"""With a budget of 64 MiB for what is published: caches, what one batch may take, and what the C library keeps."""

SETTINGS = """
[server]
memory = "64MiB"

[before_login]
per_address = 32
"""

DUE = frozenset({"settle dictionary", "settle dictionary of dictionaries"})
"""Streams on which pyarrow's reader ends the door's process (`test_flight_door`), before any of our code sees them."""

OFTEN, SELDOM = 6, 1
"""How often a stream of a shape that is taken is broken, for one of a shape that never is, and for a consumer's."""


class Pressed:
    """`with Pressed(folder) as pressed: pressed.stream(7)`."""

    def __init__(self, folder: Path, bounds: Bounds = BOUNDS) -> None:
        self.bounds = bounds
        self.seen = Counter[str]()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "settings.toml").write_text(SETTINGS)
        self.server = LiveServer(folder, [str(folder / "settings.toml")], flight=True)
        self.server.loads = True  # its memory is judged
        self._streams = {name: stream for name, stream in valid_streams().items() if name not in DUE}
        self._names = sorted(self._streams)
        self._weights = [_weight(name, self._streams[name]) for name in self._names]

    def __enter__(self) -> Self:
        self.server.__enter__()
        self.wire = FlightWire(self.server.ready["flight"])
        for queue in (QUEUE, CONSUMED):
            self._do("declare", {"queue": queue, "settings": {"lease_period": "1s"}})
        sent = self.wire.put(self._streams["publish bodies"].frames())  # everything that is loaded late is loaded now
        assert sent.code is grpc.StatusCode.OK, sent
        self.server.hears(" is ready: ")  # the last line of a start: further ones count
        assert self.server.process is not None
        self.watched = Watched(self.server.process.pid, self.server.folder / "output.txt")
        self.watched.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.watched.__exit__(kind, error, trace)
        self.wire.__exit__(kind, error, trace)
        self.server.__exit__(kind, error, trace)

    def described(self) -> Mapping[str, str]:
        """The server's actions, and what it says of each."""
        with flight.FlightClient(f"grpc://{self.server.ready['flight']}") as client:
            token = client.authenticate_basic_token("guest", "guest")
            return {one.type: one.description for one in client.list_actions(flight.FlightCallOptions(headers=[token]))}

    def stream(self, seed: int) -> None:
        """Send one broken stream.  AssertionError says which, and what was wrong with the answer."""
        rng = Random(seed)
        [name] = rng.choices(self._names, self._weights)
        how, frames = mutated(rng, self._streams[name])
        stream = self._streams[name]
        outcome = (self.wire.put if stream.call == "put" else self.wire.exchange)(frames)
        self._judge(seed, f"{name}, {how}", outcome)
        if how == "valid" and _taken(name):
            assert outcome.code is grpc.StatusCode.OK, f"seed {seed}: {name} is valid: {outcome}"
        self.seen[how if outcome.code is grpc.StatusCode.OK else "refused"] += 1

    def words(self, seed: int, described: Mapping[str, str]) -> None:
        """Send one made-up command.  AssertionError as `stream`."""
        method, about, message = made_up(Random(seed), described)
        outcome = self.wire.one(method, message)
        self._judge(seed, f"{method} {about} {message[:200]!r}", outcome)
        self.seen[method if outcome.code is grpc.StatusCode.OK else "refused"] += 1

    def judge(self) -> None:
        """AssertionError unless it has stayed within its bounds and takes what is valid."""
        outcome = self.wire.put(self._streams["publish all columns"].frames())
        assert outcome.code is grpc.StatusCode.OK, outcome
        self.watched.judge(self.bounds)

    def _judge(self, seed: int, what: str, outcome: Outcome) -> None:
        alive = self.watched.alive
        told = f"seed {seed}: {what}: {outcome}\n{self.server.output()[-4000:] if not alive else ''}"
        assert alive, f"the server ended.  {told}"
        assert not outcome.cut, told
        assert "internal error" not in outcome.details, told
        assert outcome.code not in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED), told

    def _do(self, kind: str, body: Mapping[str, object]) -> None:
        outcome = self.wire.one("DoAction", action(kind.encode(), json.dumps(body).encode()))
        assert outcome.code is grpc.StatusCode.OK, outcome


def _taken(name: str) -> bool:
    """Whether a stream that is not broken is one that is taken."""
    return not any(name.endswith(strange) for strange in STRANGE) and not name.startswith(("ordered", "settle"))


def _weight(name: str, stream: Stream) -> int:
    return SELDOM if stream.call == "exchange" or not (_taken(name) or name.startswith("ordered")) else OFTEN
