"""Manifests of archives and backups whose sum is right and whose fields are not: each is refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import LogDamaged
from penstock.log.archive import manifest as archive
from penstock.log.archive.manifest import Manifest, Part, read
from penstock.log.archive.told import with_sum
from penstock.log.simdisk import SimDisk
from penstock.server.bulk import backup
from penstock.server.bulk.backup import Kept

PART = Part("messages/topic=a/day=2024-01-01/1.parquet", "a", 1, 9, 9, 100, 7, 8)
WHOLE = Manifest(5, 2, ((1, 10), (20, 30)), (PART,), ("records/day=2024-01-01/x.parquet",), {"1": ["a", "b"]}, 1)
TAKEN = backup.Manifest(5, 1, 9, 9, 1_700_000_000_000_000, "one", "0.1.0", [Kept("log/1.arrows", 10, 3)])
MOST = 2**53


def changed(data: bytes, at: tuple[str | int, ...], value: object) -> bytes:
    """The same manifest with one value in the place of another, and the sum of that."""
    said: Any = json.loads(data)
    del said["check"]
    inner = said
    for step in at[:-1]:
        inner = inner[step]
    if value is KeyError:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return with_sum(said)


def on_disk(name: str, data: bytes) -> SimDisk:
    return SimDisk({name: data})


def test_what_was_written_is_read() -> None:
    assert read(on_disk(archive.NAME, WHOLE.encode())) == WHOLE
    assert backup.read(on_disk(backup.NAME, TAKEN.encode())) == TAKEN
    assert read(on_disk(archive.NAME, changed(WHOLE.encode(), ("pruned",), KeyError))) == WHOLE._replace(pruned=0)


ARCHIVES: list[tuple[tuple[str | int, ...], object, str]] = [
    (("version",), "1", "has version '1', and"),
    (("origin",), "5", "origin is '5', not a whole number from 0 to"),
    (("origin",), True, "origin is True"),
    (("origin",), 5.0, "origin is 5.0"),
    (("origin",), None, "origin is None"),
    (("origin",), KeyError, "origin is missing"),
    (("number",), -1, "number is -1"),
    (("number",), 2**63, f"number is {2**63}"),
    (("pruned",), "x" * 1000, "pruned is 'xxx"),
    (("pruned",), MOST, f"pruned is {MOST}"),
    (("spans",), {}, "spans is {}, not a list"),
    (("spans",), "ab", "spans is 'ab', not a list"),
    (("spans", 0), 7, "spans[0] is 7, not two LSNs"),
    (("spans", 0), [1], "spans[0] is [1], not two LSNs"),
    (("spans", 1), [1, 2, 3], "spans[1] is [1, 2, 3]"),
    (("spans", 1, 0), "20", "spans[1][0] is '20'"),
    (("spans", 1), [30, 30], "spans[1] is [30, 30], which is no span of LSNs"),
    (("spans", 1), [5, 30], "spans[1] is [5, 30], and the one before ends at 10"),
    (("gone",), None, "gone is None, not a list"),
    (("gone", 0), 3, "gone[0] is 3, not the path of a file below its folder"),
    (("gone", 0), "../x", "gone[0] is '../x', not the path"),
    (("vias",), [], "vias is [], not an object"),
    (("vias", "1"), "ab", "vias.1 is 'ab', not a list"),
    (("vias", "1", 1), 2, "vias.1[1] is 2, not a text"),
    (("files",), None, "files is None, not a list"),
    (("files", 0), "x", "files[0] is 'x', not an object"),
    (("files", 0, "path"), 7, "files[0].path is 7"),
    (("files", 0, "path"), "/etc/passwd", "files[0].path is '/etc/passwd'"),
    (("files", 0, "topic"), 7, "files[0].topic is 7, not a text or null"),
    (("files", 0, "first"), "1", "files[0].first is '1'"),
    (("files", 0, "last"), 0, "files[0].last is 0, not a whole number from 1 to"),
    (("files", 0, "rows"), 9.0, "files[0].rows is 9.0"),
    (("files", 0, "bytes"), [], "files[0].bytes is []"),
    (("files", 0, "foot"), 2**32, f"files[0].foot is {2**32}"),
    (("files", 0, "sum"), None, "files[0].sum is None"),
    (("files", 0, "sum"), KeyError, "files[0].sum is missing"),
    (("files", 0, "more"), 1, "files[0].more is not known"),
    (("more",), 1, "more is not known"),
]


@pytest.mark.parametrize(("at", "value", "told"), ARCHIVES, ids=str)
def test_an_archive(at: tuple[str | int, ...], value: object, told: str) -> None:
    with pytest.raises(LogDamaged) as refused:
        read(on_disk(archive.NAME, changed(WHOLE.encode(), at, value)))
    assert told in str(refused.value)
    assert len(str(refused.value)) < 500
    assert at == ("version",) or archive.AGAIN in str(refused.value)


BACKUPS: list[tuple[tuple[str | int, ...], object, str]] = [
    (("origin",), "5", "origin is '5'"),
    (("first",), None, "first is None"),
    (("last",), 2.5, "last is 2.5"),
    (("rows",), -1, "rows is -1"),
    (("time",), 2**63 - 1, f"time is {2**63 - 1}, not a whole number from 0 to 253402300799999999"),
    (("server",), 4, "server is 4, not a text"),
    (("version",), None, "version is None, not a text"),
    (("version",), KeyError, "version is missing"),
    (("files",), {}, "files is {}, not a list"),
    (("files", 0), [], "files[0] is [], not an object"),
    (("files", 0, "name"), "", "files[0].name is ''"),
    (("files", 0, "bytes"), "10", "files[0].bytes is '10'"),
    (("files", 0, "crc32c"), True, "files[0].crc32c is True"),
    (("files", 0, "size"), 1, "files[0].size is not known"),
    (("more",), 1, "more is not known"),
]


@pytest.mark.parametrize(("at", "value", "told"), BACKUPS, ids=str)
def test_a_backup(at: tuple[str | int, ...], value: object, told: str) -> None:
    with pytest.raises(LogDamaged) as refused:
        backup.read(on_disk(backup.NAME, changed(TAKEN.encode(), at, value)))
    assert told in str(refused.value)


@pytest.mark.parametrize("said", [[], 1, "x", None, {"check": 0}])
def test_what_is_no_object(said: object) -> None:
    data = json.dumps(said).encode()
    for look in (lambda: read(on_disk(archive.NAME, data)), lambda: backup.read(on_disk(backup.NAME, data))):
        with pytest.raises(LogDamaged, match="not what was written"):
            look()
