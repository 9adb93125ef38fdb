"""Uploads that stay open for a moment: who publishes one message after another makes no call for each.

A call costs client, door and server about twice what a message on an open one does.  The second message that goes the
same way within `KEPT_S` opens an upload that the next ones use, each answered before its caller goes on, as on a call
of its own.  One message at most is under way on each, so when one is lost no other message is in doubt.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pyarrow as pa

from penstock.client.forks import watch
from penstock.client.messages import Refusal, TableReceipt
from penstock.client.outgoing import Upload
from penstock.errors import PenstockError, Unavailable

KEPT_S = 0.02
"""How long an upload waits for the next message: it has a thread of the server meanwhile, and a place among streams."""

KEPT_MOST = 8
"""Of one client at a time: who goes round more ways has a call for each message of the others."""

WAYS_MOST = 64
"""Of which it is remembered when the last message went."""


class Kept:
    """Those of one client.  Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ways = OrderedDict[Hashable, float]()  # when the last message went, the oldest first
        self._closed = False
        self.leave()
        watch(self)

    def leave(self) -> None:
        """Have none, and no thread: in the child of a process that was forked, too, where they are the parent's."""
        self._changed = threading.Condition()
        self._idle = list[_Idle]()  # the oldest first
        self._watching = False

    @property
    def idle(self) -> int:
        """How many wait for a message."""
        return len(self._idle)

    def send(
        self, way: Hashable, sequence: int | None, batch: pa.RecordBatch, open_: Callable[[], tuple[Any, Any]]
    ) -> tuple[TableReceipt, list[Refusal]]:
        """Send one batch, and wait for its answer.

        way        what else is the same for messages that may share an upload, their schema too
        sequence   of the first row, where the publisher numbers: an upload is used only for the number that it is at
        open_      makes the call
        """
        try:
            with self._upload((way, sequence), open_) as (upload, stays):
                if not stays:
                    upload.send(batch)
                    return upload.finish()
                receipt = upload.exchange(batch)
            next_ = None if sequence is None else sequence + batch.num_rows
            self._keep(_Idle((way, next_), upload, self._clock()))
            return receipt
        except Unavailable:
            self.drop()  # their connection may be the one that was lost
            raise
        finally:
            self._went(way)

    @contextmanager
    def _upload(
        self, key: tuple[Hashable, int | None], open_: Callable[[], tuple[Any, Any]]
    ) -> Generator[tuple[Upload, bool], None, None]:
        """One for a batch, and whether it is to stay open; it ends with an error, and where it is not to stay."""
        upload = self._take(key)
        stays = upload is not None or self._is_busy(key[0])
        with ExitStack() as ending:
            upload = ending.enter_context(upload or Upload(*open_()))
            yield upload, stays
            if stays:
                ending.pop_all()

    def _is_busy(self, way: Hashable) -> bool:
        """Whether a message went this way a moment ago."""
        with self._changed:
            return self._clock() - self._ways.get(way, -KEPT_S) < KEPT_S

    def _is_quiet(self, now: float) -> bool:
        """Whether no message went any way for a moment."""
        return self._closed or now - next(reversed(self._ways.values()), -KEPT_S) >= KEPT_S

    def _went(self, way: Hashable) -> None:
        with self._changed:
            self._ways[way] = self._clock()
            self._ways.move_to_end(way)
            if len(self._ways) > WAYS_MOST:
                self._ways.popitem(last=False)

    def _take(self, key: Hashable) -> Upload | None:
        now = self._clock()
        with self._changed:
            for place in reversed(range(len(self._idle))):  # the youngest: the others end the sooner
                if self._idle[place].key == key and now - self._idle[place].since <= KEPT_S:
                    return self._idle.pop(place).upload
        return None

    def _keep(self, idle: _Idle) -> None:
        with self._changed:
            self._idle.append(idle)
            over = self._idle if self._closed else self._idle[:-KEPT_MOST]
            self._idle = self._idle[len(over) :]
            watched, self._watching = self._watching, bool(self._watching or self._idle)
        if self._watching and not watched:
            try:
                threading.Thread(target=self._watch, name="penstock-kept", daemon=True).start()
            except RuntimeError:  # there is none to be had, or Python ends: the message is stored all the same
                self._watching = False
                self.drop()
        _end(over)

    def _watch(self) -> None:
        """End those that nobody used for a while, until there are none."""
        while True:
            with self._changed:
                if self._idle:
                    self._changed.wait(max(0.0, self._idle[0].since + KEPT_S - self._clock()))
                now = self._clock()
                over = [one for one in self._idle if now - one.since > KEPT_S]
                self._idle = self._idle[len(over) :]
                if not self._idle and not over:
                    if self._is_quiet(now):
                        self._watching = False
                        return
                    self._changed.wait(KEPT_S)  # the next message is under way, and begins no other thread
            _end(over)

    def drop(self) -> None:
        """End those that nobody uses."""
        with self._changed:
            over, self._idle = self._idle, []
            self._changed.notify_all()
        _end(over)

    def close(self) -> None:
        """None stays open from now on."""
        self._closed = True
        self.drop()


class _Idle:
    """One that waits for the next message."""

    __slots__ = ("key", "since", "upload")

    def __init__(self, key: Hashable, upload: Upload, since: float) -> None:
        self.key = key
        self.upload = upload
        self.since = since


def _end(uploads: list[_Idle]) -> None:
    for one in uploads:
        with suppress(PenstockError), one.upload:
            pass
