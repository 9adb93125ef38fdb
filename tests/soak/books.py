"""What a soak knows of every message ever sent: one byte of flags a message, so that an hour's worth fits in memory.

A body is made of the number of its publisher and its own number, so whoever gets it can tell whether it is right.
Thread-safe: a publisher's confirm and a consumer's delivery of one message come in two threads, in any order.  What was
refused was never stored, so it comes neither before nor after.  (A log that breaks refuses what may have been sent
already: nobody knows what becomes of it.  `soak` says so when that happens, and nothing here makes up for it.)
Counts are for the eye.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence

CONFIRMED, DELIVERED, ACKED, PROVEN, REFUSED, TRANSIENT, LOST = 1, 2, 4, 8, 16, 32, 64
"""PROVEN: acked, and a later confirm says that the ack is on the disk.  LOST: transient, and its server was killed."""

_PAD = b"".join(b"%04d-" % n for n in range(900))
_SIZES = (10, 60, 60, 120, 120, 300, 900, 3000)

Id = tuple[int, int]


def body_of(publisher: int, number: int) -> bytes:
    """JSON of 40 to 3,000 bytes; `n` is what filters look at, 0 to 9."""
    size = _SIZES[(number * 7 + publisher) % len(_SIZES)]
    start = number % 1000
    return b'{"p":%d,"s":%d,"n":%d,"pad":"%s"}' % (publisher, number, number % 10, _PAD[start : start + size])


def identity(body: bytes) -> Id:
    """Publisher and number of a body; ValueError for one that no publisher made."""
    comma = body.index(b",")
    return int(body[5:comma]), int(body[comma + 5 : body.index(b",", comma + 1)])


class Books:
    """Flags by publisher and number, and what was found wrong."""

    def __init__(self) -> None:
        self.flags = list[bytearray]()
        self.queues = list[str]()
        self.counts = Counter[str]()
        self.wrong = list[str]()
        self.waiting = list[int]()  # by publisher: sent, and neither acked, refused nor lost
        self._lock = threading.Lock()

    def publisher(self, queue: str) -> int:
        """The number of a new publisher to a queue."""
        with self._lock:
            self.flags.append(bytearray())
            self.queues.append(queue)
            self.waiting.append(0)
            return len(self.flags) - 1

    def send(self, publisher: int, count: int, transient: bool = False) -> range:
        """Numbers of messages that are about to be sent."""
        flags = self.flags[publisher]
        first = len(flags)
        flags.extend(bytes([TRANSIENT if transient else 0]) * count)
        with self._lock:
            self.waiting[publisher] += count
        self.counts["sent"] += count
        return range(first, first + count)

    def confirm(self, publisher: int, numbers: Iterable[int], flag: int = CONFIRMED) -> None:
        """The server said yes, or with REFUSED no."""
        flags = self.flags[publisher]
        n = 0
        with self._lock:
            for number in numbers:
                flags[number] |= flag
                n += 1
                if flag == REFUSED and flags[number] & DELIVERED:
                    self.fault(f"{publisher}.{number} of {self.queues[publisher]} had come, and was refused")
            if flag == REFUSED:
                self.waiting[publisher] -= n
        self.counts["confirmed" if flag == CONFIRMED else "refused"] += n

    def deliver(self, body: bytes, redelivered: bool, queue: str = "") -> Id:
        """A consumer got this from a queue."""
        try:
            publisher, number = identity(body)
            right = body == body_of(publisher, number) and number < len(self.flags[publisher])
        except (ValueError, IndexError):
            right = False
        if not right:
            self.fault(f"a body that nobody sent: {body[:80]!r}")
            return (-1, -1)
        flags = self.flags[publisher]
        with self._lock:
            was = flags[number]
            flags[number] = was | DELIVERED
        if was & PROVEN:
            where = f"{publisher}.{number} of {self.queues[publisher]}"
            self.fault(f"{where} came back from '{queue}' after its ack was on the disk")
        if was & REFUSED:
            self.fault(f"{publisher}.{number} of {self.queues[publisher]} was refused, and came")
        if was & DELIVERED and not redelivered and not was & (ACKED | LOST):
            self.counts["came again unmarked"] += 1  # dead letters do: they are new messages with the same body
        self.counts["delivered"] += 1
        return publisher, number

    def settle(self, ids: Sequence[Id], flag: int = ACKED) -> None:
        """About to be acked, or (PROVEN) known to be on the disk as acked."""
        with self._lock:
            for publisher, number in ids:
                if publisher >= 0:
                    if not self.flags[publisher][number] & (ACKED | LOST):
                        self.waiting[publisher] -= 1
                    self.flags[publisher][number] |= flag
        self.counts["acked" if flag == ACKED else "acks proven"] += len(ids)

    def fault(self, what: str) -> None:
        """Something must not be."""
        if len(self.wrong) < 100:
            self.wrong.append(what)

    def killed(self) -> None:
        """The server is gone, and transient messages with it."""
        table = bytes(value | LOST if value & TRANSIENT else value for value in range(256))
        with self._lock:
            for publisher, flags in enumerate(self.flags):
                if flags and flags[0] & TRANSIENT:
                    flags[:] = flags.translate(table)
                    self.waiting[publisher] = 0

    def close(self, found: Counter[Id]) -> None:
        """The end: `found` is everything that was still in any queue."""
        for (publisher, number), count in found.items():
            if publisher < 0:
                continue
            flags = self.flags[publisher][number]
            where = f"{publisher}.{number} of {self.queues[publisher]}"
            if count > 1:
                self.fault(f"{where} is there {count} times")
            if flags & (PROVEN | REFUSED):
                self.fault(f"{where} is there, and was {'acked' if flags & PROVEN else 'refused'} for good")
        for publisher, flags in enumerate(self.flags):
            for number, value in enumerate(flags):
                if value & CONFIRMED and not value & (ACKED | LOST) and (publisher, number) not in found:
                    self.fault(f"{publisher}.{number} of {self.queues[publisher]} was confirmed and is lost")
        self.counts["left at the end"] = sum(found.values())
