"""What members of a simulated cluster hold on to: connections that delay, break and go half-open, and syncs beside."""

from __future__ import annotations

import errno
from collections import deque
from typing import TYPE_CHECKING

from penstock.ports import File
from penstock.replication.messages import Message, decode, encode

if TYPE_CHECKING:
    from sim.members_machine import Host


class SimLink:
    """One end of a connection."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.life = host.life
        self.other: SimLink
        self.inbox = deque[Message]()
        self.closed = False
        self.cut = False  # nothing comes any more, and nobody has told

    @property
    def full(self) -> bool:
        return len(self.other.inbox) > 6

    def send(self, message: Message) -> None:
        if not self.closed and not self.other.closed and not self.other.cut:
            self.other.inbox.append(decode(*encode(message)) if self.host.world.encodes else message)

    def close(self) -> None:
        """What was sent may still arrive; the other end hears of it, or does not for a long time."""
        if not self.closed:
            self.closed = True
            world = self.host.world
            if world.rng.random() < world.told_of_ends:
                self.other.host.later(lambda: self.other.end())

    def end(self) -> None:
        if not self.closed and self.host.life == self.life and self.host.member is not None:
            self.closed = True
            self.host.member.lost(self)

    def deliver(self, most: int) -> None:
        """Some messages are heard, and perhaps synced."""
        member = self.host.member
        if member is None or self.host.life != self.life:
            self.inbox.clear()
            return
        self.hear(most)
        if not self.closed and self.host.world.rng.random() < 0.8:
            member.gathered(self)
        if self.other.host.member is not None and not self.other.closed:
            self.other.host.member.writable(self.other)

    def hear(self, most: int) -> None:
        """Some messages are heard, and nothing is synced yet."""
        member = self.host.member
        for _ in range(min(most, len(self.inbox))):
            if self.closed or member is None:
                return
            member.heard(self, self.inbox.popleft())

    def come(self) -> None:
        """All is heard that was sent so far."""
        if self.inbox:
            self.deliver(len(self.inbox))


class SimSyncer:
    """Syncs a file as it is when that is asked for, or as it is when its end is told."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.file: File | None = None
        self.early = False

    def begin(self, file: File) -> None:
        rng = self.host.world.rng
        if rng.random() < 0.1:
            raise OSError(errno.EAGAIN, "no more of such requests")
        assert self.file is None, "one at a time"
        self.file, self.early = file, rng.random() < 0.5
        if self.early:
            file.sync()
        self.host.later(lambda: self.host.sync_ended())

    def end(self) -> None:
        file, self.file = self.file, None
        assert file is not None, "it was not begun"
        if not self.early:
            file.sync()
