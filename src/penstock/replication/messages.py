"""What a leader and a follower say to each other: a small head of JSON, and for bytes of files a body.

A table names each message with the fields of its head, so that writing and reading cannot differ.  What comes is a
stranger's until it is read: each field has its bounds, a file's name is one of those that a follower may be given, and
a body is as long as its message may be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import orjson

from penstock.errors import InvalidArgument, ProtocolError, shown
from penstock.replication.terms import Written
from penstock.wire.fields import LSN_MAX, Field, Fields, as_list, count, flag, name, read_json, text, texts

PIECE_MOST = 1 << 20
"""Bytes of a file in one message."""
TERMS_MOST = 4096
WHY_MOST = 1024
ADDRESS_MOST = 512

STAGE = "stage/"
ARCHIVE = "archive.json"
"""Which archive is the cluster's, and the last manifest of it that counts."""
SIDE_FILE = re.compile(
    r"accounts\.json|archive\.json|checkpoints/[0-9A-Za-z][0-9A-Za-z._-]{0,199}|stage/[0-9a-f]{32}\.arrows"
)
"""Files that a leader may put into a follower's folder: none of the log, which comes as bytes at its own places."""
SIDE_MOST = 64 << 20
"""Bytes of one.  A larger checkpoint stays at home: it saves time and nothing else."""
STAGE_MOST = 1 << 34
"""Bytes of a stage."""
STAGES_MOST = 10_000


class SegmentFile(NamedTuple):
    """A file of the log as a member has it."""

    first: int
    last: int
    bytes: int
    identity: int  # 0 as it was first written; another one when it was written anew, in this way


class Hello(NamedTuple):
    """A follower's first word."""

    cluster: str
    origin: int  # 0: its folder is empty
    member: str
    reads: int  # the newest format that it can read
    intact: bool  # its disk has all that it ever acked
    terms: tuple[Written, ...]
    # where each member has a copy of the register, what that is to tell of it, and the term of its own copy
    term: int = 0
    maker: str = ""  # the process that made that term
    name: str = ""
    address: str = ""
    starts: int = 0
    process: str = ""
    numbers: int = 0  # the highest number of a member that it has heard of


class Welcome(NamedTuple):
    """The leader's answer."""

    term: int
    format: int
    cut: int  # the last LSN in common: what lies above is to be cut, and kept aside
    seed: (
        bool  # the follower is to begin with nothing: its log ends before ours begins, or in a file that was rewritten
    )


class Begin(NamedTuple):
    """A follower that has cut its log says where bytes are to come from."""

    term: int
    segment: int  # the first LSN of a file; 0: its folder is empty, so from the first file on
    offset: int
    stages: tuple[str, ...] = ()  # that it has, whole
    identity: int = 0  # of the file


class Refusal(NamedTuple):
    """The leader's answer to one that it cannot have."""

    term: int
    why: str


class Bytes(NamedTuple):
    """What the leader wrote next: headers, batches, marks and seals as they lie in its file."""

    term: int
    segment: int
    offset: int
    data: bytes | memoryview  # of one that came, until more comes


class File(NamedTuple):
    """A piece of another file, in its turn; with the last one it is put into place."""

    term: int
    name: str
    size: int
    offset: int
    crc: int  # CRC-32C of the file up to the end of this piece
    lsn: int  # it counts when the log is synced up to here
    data: bytes | memoryview


class Ack(NamedTuple):
    """What a follower's disk has."""

    term: int
    synced: int  # LSN
    received: int  # bytes of this stream
    files: int = 0  # other files of this stream that are in place, or were not wanted
    intact: bool = True  # it has all that it ever acked, and may be elected
    full: bool = False  # a leader with its disk would take no publishes


class Beat(NamedTuple):
    """The leader lives."""

    term: int
    beat: int  # of the register
    appended: int
    committed: int
    wall: int  # microseconds since the epoch


class Keep(NamedTuple):
    """Which stages count: others may go.  Said to who has these, and what else counts beside the log."""

    term: int
    stages: tuple[str, ...]


class Retire(NamedTuple):
    """Segments below `floor` go, once the base at `base` is synced."""

    term: int
    floor: int
    base: int


class Copy(NamedTuple):
    """What the register is to one who has a copy of its own; nothing: it has none yet."""

    data: bytes | memoryview


class Bye(NamedTuple):
    """The last word of either."""

    why: str


class Look(NamedTuple):
    """Instead of hello, of a person who has the secret: who is here?"""


class Here(NamedTuple):
    """The answer, and the last word."""

    member: str
    role: str
    version: str  # of the package
    wall: int  # microseconds since the epoch


Message: TypeAlias = (
    Hello | Welcome | Begin | Refusal | Bytes | File | Ack | Beat | Keep | Retire | Copy | Bye | Look | Here
)

_TERM = count("term", needed=True)


def _lsn(of: str) -> Field:
    return count(of, needed=True)


class _Kind(NamedTuple):
    of: type[Any]
    fields: tuple[Field, ...]
    body: bool = False  # `data` is the body


KINDS: Mapping[str, _Kind] = {
    "hello": _Kind(
        Hello,
        (
            name("cluster"), _lsn("origin"), name("member"), count("reads", 1, needed=True), flag("intact"),
            Field("terms", "value"), count("term", default=0), text("maker", ""), text("name", ""),
            text("address", "", ADDRESS_MOST), count("starts", default=0), text("process", ""),
            count("numbers", default=0),
        ),
    ),
    "welcome": _Kind(
        Welcome,
        (_TERM, count("format", 1, needed=True), _lsn("cut"), flag("seed")),
    ),
    "begin": _Kind(
        Begin, (_TERM, _lsn("segment"), _lsn("offset"), texts("stages", STAGES_MOST), count("identity", default=0))
    ),
    "refusal": _Kind(Refusal, (_TERM, text("why", "", WHY_MOST))),
    "bytes": _Kind(Bytes, (_TERM, _lsn("segment"), _lsn("offset")), body=True),
    "file": _Kind(
        File,
        (_TERM, name("name"), _lsn("size"), _lsn("offset"), count("crc", high=2**32 - 1, needed=True), _lsn("lsn")),
        body=True,
    ),
    "ack": _Kind(
        Ack,
        (
            _TERM, _lsn("synced"), _lsn("received"), count("files", default=0), flag("intact", default=True),
            flag("full"),
        ),
    ),
    "beat": _Kind(Beat, (_TERM, _lsn("beat"), _lsn("appended"), _lsn("committed"), _lsn("wall"))),
    "keep": _Kind(Keep, (_TERM, texts("stages", STAGES_MOST))),
    "retire": _Kind(Retire, (_TERM, _lsn("floor"), _lsn("base"))),
    "copy": _Kind(Copy, (), body=True),
    "bye": _Kind(Bye, (text("why", "", WHY_MOST),)),
    "look": _Kind(Look, ()),
    "here": _Kind(Here, (name("member"), text("role", "", 100), text("version", "", 100), _lsn("wall"))),
}  # fmt: skip
"""Word -> what it is; the fields of a head are those of its class, in their order."""

_WORDS = {kind.of: word for word, kind in KINDS.items()}


def encode(message: Message) -> tuple[bytes, bytes | memoryview]:
    """Head and body.  What is as it is by default is not said: older versions know nothing of newer fields."""
    word, usual = _WORDS[type(message)], message._field_defaults
    head = {name: one for name, one in message._asdict().items() if name not in usual or one != usual[name]}
    body = head.pop("data") if KINDS[word].body else b""
    if "terms" in head:
        head["terms"] = [list(one) for one in head["terms"]]
    return orjson.dumps({"say": word, **head}), body


def decode(head: bytes, body: bytes | memoryview) -> Message:
    """What the peer said.  ProtocolError names what is wrong: such a stream is ended."""
    try:
        values = read_json(head, "a message of the cluster")
        word = values.pop("say", None)
        kind = KINDS.get(word) if isinstance(word, str) else None
        if kind is None:
            raise ProtocolError(f"a message of the cluster says {shown(word)}; known: {', '.join(KINDS)}")
        found = Fields(f"cluster {word}", values).read(kind.fields)
    except InvalidArgument as error:
        raise ProtocolError(str(error)) from None
    if "terms" in found:
        found["terms"] = _terms(f"cluster {word}: terms", found["terms"])
    if "stages" in found:
        found["stages"] = _stages(f"cluster {word}: stages", found["stages"])
    if len(body) > (PIECE_MOST if kind.body else 0):
        raise ProtocolError(f"cluster {word}: {len(body)} bytes follow; at most {PIECE_MOST if kind.body else 0} may")
    if kind.body:
        found["data"] = body
    if kind.of is File:
        _check_file(found, body)
    return cast("Message", kind.of(**found))


def _check_file(found: Mapping[str, Any], body: bytes | memoryview) -> None:
    if not SIDE_FILE.fullmatch(found["name"]):
        raise ProtocolError(f"cluster file: {shown(found['name'])} is no file that a leader may send")
    most = STAGE_MOST if found["name"].startswith(STAGE) else SIDE_MOST
    if found["size"] > most:
        raise ProtocolError(f"cluster file: {found['name']} has {found['size']} bytes; at most {most} may come")
    if found["offset"] + len(body) > found["size"]:
        raise ProtocolError(f"cluster file: {found['offset']} and {len(body)} bytes, of {found['size']}")


def _stages(what: str, names: list[str] | None) -> tuple[str, ...]:
    for one in names or ():
        if not (one.startswith(STAGE) and SIDE_FILE.fullmatch(one)):
            raise ProtocolError(f"{what} has {shown(one)}, which is none")
    return tuple(names or ())


def _terms(what: str, value: object) -> tuple[Written, ...]:
    rows = as_list(value)
    if rows is None or len(rows) > TERMS_MOST:
        raise ProtocolError(f"{what} is {shown(value)}, not a list of at most {TERMS_MOST}")
    found = list[Written]()
    for row in rows:
        numbers = as_list(row) or []
        whole = [one for one in numbers if isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= LSN_MAX]
        if len(numbers) != len(Written._fields) or len(whole) != len(numbers):
            raise ProtocolError(f"{what} has {shown(row)}, not {len(Written._fields)} whole numbers")
        found.append(Written(*whole))
    return tuple(found)
