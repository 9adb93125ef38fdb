"""Work in a copy of this process, which may hang, die or leave things behind."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Nothing:
    """A copy gave no answer."""

    why: str


def in_copy(work: Callable[[], T], seconds: float) -> T | Nothing:
    """What `work` gives in a copy of this process; all that the copy started is ended."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(read)
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        with open(write, "wb") as pipe:
            try:
                answer: object = work()
            except BaseException:  # noqa: BLE001  # the parent tells it
                answer = Nothing(traceback.format_exc())
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    answer_or_why = _gather(read, time.monotonic() + seconds)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if isinstance(answer_or_why, Nothing):
        return answer_or_why
    if not answer_or_why:
        return Nothing("died")
    given: T | Nothing = pickle.loads(answer_or_why)
    return given


def _gather(read: int, until: float) -> bytes | Nothing:
    gathered = bytearray()
    with open(read, "rb", buffering=0) as pipe:
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([pipe], [], [], left)
            if ready:
                piece = pipe.read(1 << 20)
                if not piece:
                    return bytes(gathered)
                gathered += piece
    return Nothing("hung")
