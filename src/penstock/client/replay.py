"""A replay as an iterator: messages of topics after a bookmark, then, if asked for, those that are published.

    with client.replay("orders", "EPOCH", follow=True) as replay:
        for message in replay:
            ...

Nothing is leased and nothing can be settled.  Who wants to go on another day remembers the bookmark of the last message
that is done: `Bookmarks` does it, in a file, under the name of the subscription, and MOST_RECENT asks for it.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, cast

import orjson

from penstock.client.arguments import arguments_checked
from penstock.client.forks import OfThisProcess
from penstock.client.link import Link, Outage, said, translated, understood
from penstock.client.messages import Message, Rows
from penstock.client.waiting import begun, come
from penstock.errors import InvalidArgument, NotFound, PenstockError, Unavailable, told_as
from penstock.units import Duration, left_of, seconds_of, until_of

logger = logging.getLogger("penstock.client")

SAVE_S = 1.0
"""How often a file of bookmarks is written, at most; closing a replay writes it, too."""


@arguments_checked
class Bookmarks:
    """How far subscriptions have got, by their names.  In a file, or in memory without one.  Thread-safe.

    A bookmark is stored when the next message is asked for, so a crash may bring the last ones again, and leaves none
    out.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        """Read a file, if it is there.  InvalidArgument when it is none of ours."""
        self._path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self._known = dict[str, str]()
        self._saved_at = 0.0
        self._unsaved = False
        if self._path is not None and self._path.exists():
            with told_as(InvalidArgument, f"{self._path} holds no bookmarks: "):
                known: Any = orjson.loads(self._path.read_bytes())
            if not isinstance(known, dict) or not all(isinstance(one, str) for one in cast("Any", known).values()):
                raise InvalidArgument(f"{self._path} holds no bookmarks")
            self._known = cast("dict[str, str]", known)

    def most_recent(self, name: str) -> str | None:
        """The bookmark of the last message that a subscription is done with."""
        with self._lock:
            return self._known.get(name)

    def begin(self, name: str, asked: str) -> str:
        """Where a subscription begins that asks for this bookmark."""
        return (self.most_recent(name) or "EPOCH") if asked.strip().upper() == "MOST_RECENT" else asked

    def store(self, name: str, bookmark: str) -> None:
        """A subscription is done with everything up to this bookmark."""
        with self._lock:
            self._known[name] = bookmark
            self._unsaved = True
            if time.monotonic() - self._saved_at >= SAVE_S:
                self._save()

    def save(self) -> None:
        """Write the file, so that it lasts."""
        with self._lock:
            self._save()

    def _save(self) -> None:
        if self._path is None or not self._unsaved:
            return
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with part.open("wb") as file:
            file.write(orjson.dumps(self._known))
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path)
        self._unsaved = False
        self._saved_at = time.monotonic()


Again = Callable[["str | None", int, "str | None", "str | None"], bytes]
"""The ticket that goes on after a bookmark, with so many messages less, under another id, at another rate."""


@arguments_checked
class Replay(OfThisProcess):
    """An iterator of messages.  Made by `Client.replay`; closing it ends it, also from another thread."""

    def __init__(
        self,
        link: Link,
        ticket: bytes,
        *,
        id: str | None = None,
        timeout: Duration | None = None,
        done: Callable[[str], None] | None = None,
        saved: Callable[[], None] | None = None,
        again: Again | None = None,
        reconnect: float | None = 0.0,
    ) -> None:
        """For `Client.replay` alone.  done, saved: what remembers bookmarks.

        again, reconnect: how it goes on after a lost connection, and how many seconds the server may be away; None:
        for ever.
        """
        self.id = id
        self.completed = False
        """Whether the replay is over: the end of its range, or level with what is published."""
        self.restarts = 0
        """How often the connection was lost and is there again."""
        self.notice = ""
        """What there is to know: that the bookmark was not found, and where it reads from instead."""
        self._link = link
        self._ticket = ticket
        self._timeout = None if timeout is None else seconds_of(timeout, "timeout")
        self._done = done
        self._saved = saved
        self._again = again
        self._outage = Outage(0.0 if again is None else reconnect)
        self._answered = False
        self._after: str | None = None  # bookmark up to which all has come
        self._came = 0  # messages
        self._going = threading.Event()  # it is not paused
        self._going.set()
        self._rate: str | None = None  # another one than it began with
        self._reader: Any = None
        self._coming: Future[Any] | None = None  # the next chunk: who waited for it may have left, and ask again
        self._entered = False
        self._ready: deque[Message] = deque()
        self._last: Message | None = None
        self._closed = False
        self._ended = threading.Event()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        message = self._take(self._timeout)
        if message is None:
            if not self._entered:
                self.close()
            raise StopIteration
        return message

    def take(self, timeout: Duration | None = None) -> Message | None:
        """The next message; None at the end, and when none came for so long, by default those that the replay
        was asked for with: then this may be called again.  Errors come with the first.

        While the server is away it is tried again.  Unavailable when it is away at the end of `timeout`, after which
        this may be called again, and when it is given up.
        """
        return self._take(self._timeout if timeout is None else left_of(timeout, "timeout"))

    def _take(self, timeout: float | None) -> Message | None:
        if self._last is not None and self._done is not None:
            self._done(self._last.bookmark)
            self._last = None
        until = until_of(time.monotonic(), timeout)
        while not self._ready:
            read = not self._closed and self._read(until)
            if not read:
                if read is not None:
                    self.close()
                return None
        self._last = self._ready.popleft()
        return self._last

    def _read(self, until: float | None) -> bool | None:
        """Wait for one chunk; False at the end, None when none came until that moment of the monotonic clock."""
        if self._reader is None and not self._due(until):
            return False
        try:
            reader = self._reader or self._open()
            with translated():
                try:
                    if (chunk := self._chunk(reader, until)) is None:
                        return None
                except StopIteration:
                    self.completed = True
                    return False
        except PenstockError as error:
            if self._closed and isinstance(error, Unavailable):
                return False
            self._lost(error)
            return True
        self._take_in(chunk)
        return True

    def _chunk(self, reader: Any, until: float | None) -> Any:
        """What comes next; None when nothing did until then."""
        coming = self._coming = self._coming or begun(reader.read_chunk)
        if not come(coming, None if until is None else max(0.0, until - time.monotonic())):
            return None
        self._coming = None
        try:
            return coming.result()
        finally:
            del coming  # as in `attended`

    def _take_in(self, chunk: Any) -> None:
        self._answered = True
        if self._outage.over():
            logger.warning("connected to %s again", self._link.address)
        if chunk.app_metadata is not None:
            with understood():
                self._told(said(chunk.app_metadata.to_pybytes()))
        if chunk.data is not None and chunk.data.num_rows:
            rows = Rows(chunk.data)
            self._ready.extend(Message(rows, row) for row in range(len(rows)))
            self._came += len(rows)
            if self._again is not None:
                self._after = self._ready[-1].bookmark

    def _due(self, until: float | None) -> bool:
        """Wait until the server is to be asked, after an outage; False when this is closed."""
        error = self._outage.error
        if error is None:
            return True
        if not self._outage.wait(until, self._ended):
            if self._closed:
                return False
            raise Unavailable(f"the server is away, and is tried again: {error}")
        while not self._going.wait(0.1):
            if self._closed:
                return False
        return True

    def _open(self) -> Any:
        """The stream, or what goes on after what came of a lost one."""
        if self._answered and self._again is not None:
            self.id = None if self.id is None else secrets.token_hex(8)
            self._ticket = self._again(self._after, self._came, self.id, self._rate)
            self.restarts += 1
            self.completed = False
        self._reader = self._link.get(self._ticket)
        return self._reader

    def _lost(self, error: PenstockError) -> None:
        """The connection was lost; raises what ends the replay."""
        self._link.doubt()
        if not self._answered:
            raise error
        self._reader = None
        first = self._outage.error is None
        self._outage.failed(error)
        if first:
            logger.warning("the connection to %s was lost and is tried again: %s", self._link.address, error)

    def _told(self, said: dict[str, Any]) -> None:
        if said.get("completed"):
            self.completed = True
        if self._after is None:
            self._after = said.get("after")
        notice = said.get("notice")
        if isinstance(notice, str):
            self.notice = notice
            logger.warning("%s", notice)

    def pause(self) -> None:
        """Nothing more is sent until `resume`; what is under way still comes."""
        name = self._named()
        self._going.clear()
        if self._outage.error is None:
            self._tell("replay_pause", id=name)

    def resume(self, rate: str | None = None) -> None:
        """Go on, from now on at this rate if one is given."""
        name = self._named()
        self._rate = rate or self._rate
        self._going.set()
        if self._outage.error is None:
            self._tell("replay_resume", id=name, rate=rate)

    def _tell(self, what: str, **fields: object) -> None:
        try:
            self._link.act(what, fields)
        except NotFound:
            if self._closed or self.completed or self._again is None:
                raise  # else the connection is lost, which the next message tells: it is done when there is another

    def _named(self) -> str:
        if self.id is None:
            raise InvalidArgument("a replay that neither follows nor has a rate is not paused")
        return self.id

    def close(self) -> None:
        """End it; twice does no harm."""
        self._closed = True
        self._ended.set()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
        if self._saved is not None:
            self._saved()

    @property
    def over(self) -> bool:
        """Whether nothing comes any more, as of `consumer.Closing`."""
        return self._closed or self._link.closed

    def begin(self) -> None:
        """Have the server begin now, and not with the first message that is asked for; nothing if it has.

        What it refuses comes with that message, for which it is asked again.
        """
        if self._reader is None and not self._closed and not self._answered:
            with suppress(PenstockError):
                self._open()

    def __enter__(self) -> Self:
        self._entered = True
        self.begin()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if kind is None and self._last is not None and self._done is not None:
            self._done(self._last.bookmark)
        self.close()
