"""Every error that a user of Penstock can meet, as one tree.

    PenstockError
    |- Refused              the server said no; the state is as before
    |  |- NotFound          no such queue, exchange, topic, vhost, stream
    |  |  |- Unroutable     no queue and no declared topic takes the message
    |  |- AccessRefused     not allowed for this user, or never allowed
    |  |- ResourceLocked    another connection's exclusive queue, or a held lock
    |  |- PreconditionFailed  the object is there but not as asked
    |  |- InvalidArgument   a value has the wrong type, name or range
    |  |  |- ResourceExhausted  a statement needs more memory or disk than it may take
    |  |- QueueFull         a limit refused the message
    |  |  |- QueueBlocked   the queue holds its publishers up, and nobody waits here
    |  |- Fenced            a newer holder of a stream or lease is active
    |  |- DiskFull          the log, or what waits beside it, has no room for more messages
    |  |  |- MemoryShort    memory was short for too long, and this held some of it
    |- ExpressionError      an expression that cannot be read, with the place
    |- SettingsError        a settings file, variable or option that cannot be used
    |- ProtocolError        the peer broke the protocol of its connection
    |- InvalidBody          a message's body is not of the type that was asked for
    |- Unavailable          cannot connect, connection lost, or server starting or stopping
    |  |- LogBroken         a write or sync failed; this process confirms nothing more
    |- DataFolderInUse      another process serves this folder
    |- LogDamaged           bytes of the log are wrong in the middle

Each class has a stable `code` that is never reused, whether a `retry` may help, and a sentence on what `to_do`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, ClassVar, Protocol, cast

AROUND = 60
"""Characters on either side of the caret that are shown of a long expression."""

_PACKED = re.compile(r"\s*\[\w+(:[\w-]+)\]")
"""The schemas of a message type, which an expression over its bodies begins with: nobody has written them."""


class PenstockError(Exception):
    """The root: catch it to catch whatever Penstock raises on purpose."""

    code: ClassVar[str] = "PS000"
    retry: ClassVar[bool] = False
    to_do: str = "See the message."
    exit_status: ClassVar[int] = 1


class Refused(PenstockError):
    """The server said no and changed nothing."""

    code = "PS100"
    to_do = "Change the command as the message says."

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or self.code


class Sees(Protocol):
    """What somebody sees of what has a name."""

    def sees_queue(self, vhost: str, name: str, /) -> bool: ...

    def sees_topic(self, vhost: str, exchange: str, name: str, /) -> bool: ...


class NotFound(Refused):
    """The named object does not exist."""

    code = "PS101"
    to_do = "Check its name or number and its vhost; what is not there yet, declare first."
    near: Callable[[Sees], str | None] | None = None
    """Of a missing queue or topic: told who sees what, the name of one that may have been meant."""


class Unroutable(NotFound):
    """No queue and no declared topic takes the message, so it was not stored.

    receipt: what became of the whole upload, a `penstock.client.TableReceipt`; None where nothing of it was done.
    """

    code = "PS111"
    to_do = "Declare a queue or a topic that takes it; `mandatory=False` publishes to whoever is there, and to nobody."

    def __init__(self, message: str, *, reason: str = "", receipt: Any = None) -> None:
        super().__init__(message, reason=reason)
        self.receipt = receipt


class AccessRefused(Refused):
    """This user may not do this, or nobody may."""

    code = "PS102"
    to_do = "Ask for the permission, or use another name."


class ResourceLocked(Refused):
    """Somebody else holds it exclusively."""

    code = "PS103"
    retry = True
    to_do = "Wait until the holder's connection closes."


class PreconditionFailed(Refused):
    """The object exists but not as the command asks."""

    code = "PS104"
    to_do = "See the message for the state it is in; ask for that, or change it first."


class InvalidArgument(Refused):
    """A value has the wrong type, name or range."""

    code = "PS105"
    to_do = "Use a value the message allows."
    exit_status = 2


class ResourceExhausted(InvalidArgument):
    """A statement needs more memory, time, or disk beside it than a limit allows.  Others go on."""

    code = "PS110"
    to_do = "Read less, or raise the limit that the message names."


class QueueFull(Refused):
    """A limit of a queue refused the message."""

    code = "PS106"
    retry = True
    to_do = "Consume, raise the limit, or retry later."


class Draining(Refused):
    """An operator lets the server run empty: it takes no new messages and no new consumers."""

    code = "PS109"
    retry = True
    to_do = "Use another server, or retry once it was restarted or `penstock drain --undo` was said."


class QueueBlocked(QueueFull):
    """A queue that holds its publishers up is full, and this publish does not wait for room."""

    code = "PS108"
    retry = True
    to_do = "Consume, raise the limit, or retry after a moment; over AMQP and Flight a publish waits by itself."


class Fenced(Refused):
    """A newer reader of the stream, or a newer holder of the lease, is active."""

    code = "PS107"
    to_do = "Let one reader own the stream; this one is out of date."


class ExpressionError(PenstockError):
    """An expression that cannot be read or compiled.  `place` is the offset of the offending character.

    A traceback shows the expression below the message, as a note of the exception.
    """

    code = "PS200"
    to_do = "Correct the expression at the caret."
    exit_status = 2

    def __init__(self, message: str, *, text: str = "", place: int = 0) -> None:
        super().__init__(message)
        self.text = text
        self.place = place
        if text:
            self.add_note(self._pointer())

    def pointed(self) -> str:
        """The message with the expression below it and a caret under the place."""
        return f"{self}\n{self._pointer()}"

    def _pointer(self) -> str:
        line_start = self.text.rfind("\n", 0, self.place) + 1
        line_end = self.text.find("\n", self.place)
        line = self.text[line_start : line_end if line_end >= 0 else None]
        place = self.place - line_start
        if (packed := _PACKED.match(line)) is not None and packed.end() <= place:
            line = line[: packed.start(1)] + line[packed.end(1) :]
            place -= packed.end(1) - packed.start(1)
        if len(line) > 2 * AROUND:
            before, after = max(0, place - AROUND), place + AROUND
            line = ("..." if before else "") + line[before:after] + ("..." if after < len(line) else "")
            place += 3 - before if before else 0
        return f"  {line}\n  {' ' * place}^"


class SettingsError(PenstockError):
    """A settings file, environment variable or command line option that cannot be used."""

    code = "PS300"
    to_do = "Correct the setting that the message names."
    exit_status = 2


class ProtocolError(PenstockError):
    """The peer broke the protocol.  `reply_code` is AMQP's; `scope` says what closes."""

    code = "PS400"
    to_do = "Check the client library and its version."

    def __init__(self, message: str, *, reply_code: int = 501, scope: str = "connection") -> None:
        super().__init__(message)
        self.reply_code = reply_code
        self.scope = scope


class InvalidBody(PenstockError, ValueError):
    """A message's body is not what was asked for, and never will be: `message.reject(str(error))` sets it aside."""

    code = "PS401"
    to_do = "Look at the dead letter and its publisher, or ask for the type that the bodies have."


class WorkFailed(PenstockError):
    """The function that was given a message raised for the last time, or the body was not what it takes."""

    code = "PS402"
    to_do = "Look at the error, and at the dead letter; submit it anew when the reason is gone."


class Unavailable(PenstockError):
    """No server answers, the connection was lost, or the server cannot serve this now."""

    code = "PS500"
    retry = True
    to_do = "Check the address and `penstock doctor`; retry with back-off."
    exit_status = 5


class NotLeading(Unavailable):
    """This member of a cluster follows: another one serves."""

    code = "PS505"
    to_do = "Name all members in the address, or ask the one that the refusal names."


class DiskFull(Refused):
    """The log has no room for more messages; consuming and acknowledging go on."""

    code = "PS501"
    retry = True
    to_do = "Free disk space or shorten the retention."


class MemoryShort(DiskFull):
    """Memory is short, and what the client had open held more of it than others, or wants more than there is."""

    code = "PS506"
    to_do = "Take what waits and commit sooner, hold less at once, or raise `server.memory`."


class DataFolderInUse(PenstockError):
    """Another process serves this data folder."""

    code = "PS502"
    to_do = "Stop the other server, or use another data folder."
    exit_status = 3


class LogDamaged(PenstockError):
    """Bytes in the middle of the log are not what was written.  Names file, batch and LSN; nothing was changed."""

    code = "PS503"
    to_do = "`penstock log verify` shows all damage; docs/backup.md says what to put back from where."
    exit_status = 4


class LogBroken(Unavailable):
    """A write or sync of the log failed: this process confirms nothing more until it is restarted."""

    code = "PS504"
    to_do = "Check the disk, then restart the server; it replays the log."


def printable(text: str) -> str:
    """Text on one line, for a log or a terminal: a control character as Python writes it, and so no line of its own."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def shown(value: object) -> str:
    """A value for a message, as a settings file or JSON writes it and not as Python does, cut where it is long."""
    text = _as_written(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _as_written(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str() if value.isprintable() and "'" not in value:
            return f"'{value}'"  # TOML's plain text, in which a backslash is itself
        case Mapping():
            table = cast("Mapping[object, object]", value)
            inside = ", ".join([f"{key} = {_as_written(one)}" for key, one in table.items()])
            return f"{{ {inside} }}" if inside else "{}"
        case list():
            return f"[{', '.join([_as_written(one) for one in cast('list[object]', value)])}]"
        case _:
            write = getattr(value, "isoformat", None)  # a day, a time or both, which TOML has
            return str(write()) if callable(write) else repr(value)


NEAR_MOST = 1_000
"""Names of which the nearest to a wrong one is told."""


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is nearest to an unknown one, if one is near.

    Among more than `NEAR_MOST` nobody looks: each takes some 20 us, and strangers make up both.
    """
    from difflib import get_close_matches  # for mistakes alone

    names = sorted(islice(known, NEAR_MOST + 1))
    near = get_close_matches(name, names, n=1, cutoff=0.6) if len(names) <= NEAR_MOST else []
    return near[0] if near else None


def known_name(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """`; did you mean 'x'?` for the known name that is nearest to an unknown one; otherwise what else is to be said."""
    near = nearest_name(name, known)
    return otherwise if near is None else f"; did you mean {near!r}?"


LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789-_."
SLIPS_WITHIN = 48
"""Characters of a name; of more some thousands would be looked up."""


def slips(name: str) -> Iterator[str]:
    """Names that differ in their case, by a character that is missing, too many or another one, or by two in turn.

    To be looked up, each: that takes the same time among a million as among ten.  None of a very long name, and never
    the name itself.
    """
    return (one for one in _slips(name) if one != name)


def _slips(name: str) -> Iterator[str]:
    yield name.lower()
    for at in range(len(name) + 1 if len(name) <= SLIPS_WITHIN else 0):
        head, tail = name[:at], name[at:]
        yield head + tail[1:]
        yield head + tail[1:2] + tail[:1] + tail[2:]
        for letter in LETTERS:
            yield head + letter + tail
            yield head + letter + tail[1:]


@contextmanager
def told_as(
    kind: Callable[[str], Exception],
    before: str = "",
    *,
    instead: type[Exception] | tuple[type[Exception], ...] = ValueError,
) -> Generator[None]:
    """What is refused inside is refused as another kind of error, whose words begin with `before`."""
    try:
        yield
    except instead as error:
        raise kind(f"{before}{error}") from None
