"""A backup is a durable prefix, complete or none; a restored folder is a log of its own that holds the same."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bulk_lab import Still, Writer, rows
from penstock.errors import InvalidArgument, LogDamaged, PenstockError, SettingsError
from penstock.history.history import History
from penstock.history.view import Folder, listing, stand_alone
from penstock.log import checkpoints
from penstock.log.archive import archive_disk
from penstock.log.archive import manifest as archive
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.rewrite_plan import Aims
from penstock.log.verify import verify
from penstock.log.writer import LogSettings
from penstock.server.app import make_folder
from penstock.server.base.clock import SystemClock
from penstock.server.bulk import backup as backups
from penstock.server.bulk.backup import run
from penstock.server.bulk.requests import Request
from penstock.server.bulk.restore import restore
from penstock.server.people.accounts import Account, Accounts, Permission, keep
from penstock.server.upkeep import offline
from penstock.wire.flight.bookmarks import parse_span


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path / "data")
    yield made
    made.log.close()


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


def back_up(writer: Writer, target: Path, copy: bool = False) -> dict[str, object]:
    disk = OsDisk(writer.folder)
    request = Request(disk, Folder(disk).view(listing(writer.log)), lambda: False, quiet)
    return run(request, str(target), copy, "penstock-1", quiet)


def content(folder: Path) -> list[dict[str, object]]:
    view = stand_alone(OsDisk(folder))
    try:
        return rows(view.batches(0, 1 << 60))
    finally:
        view.close()


@pytest.mark.parametrize("copy", [False, True])
def test_a_restored_folder_holds_what_was_durable(writer: Writer, tmp_path: Path, copy: bool) -> None:
    writer.write(200)
    expected = rows(writer.log.batches(0, 1 << 60))
    told = back_up(writer, tmp_path / "backup", copy)
    closed = len(writer.log.segments()) - 1
    assert told["linked"] == (0 if copy else closed)
    assert (told["rows"], told["last"]) == (len(expected), writer.log.durable)
    writer.write(50)  # the backup is a prefix and stays one
    done = restore(tmp_path / "backup", tmp_path / "restored", quiet)
    assert content(tmp_path / "restored") == expected
    assert verify(OsDisk(tmp_path / "restored")).good
    assert done["old_origin"] == writer.log.origin != done["origin"]
    assert verify(OsDisk(writer.folder)).good, "the original is as it was, hard links or not"


def test_rewritten_segments_go_along(writer: Writer, tmp_path: Path) -> None:
    writer.write(200)
    expected = rows(writer.log.batches(0, 1 << 60))
    disk = OsDisk(writer.folder)
    early = Folder(disk).view(listing(writer.log))
    olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in early.listed.segments[:3])
    swap = writer.log.swap(rewrite(disk, Order(olds, compress=True), lambda _: False))
    swap.prepare()
    swap.enter()
    swap.finish()
    back_up(writer, tmp_path / "late")
    told = run(Request(disk, early, lambda: False, quiet), str(tmp_path / "early"), False, "", quiet)
    assert told["linked"] == len(early.listed.segments) - 4, "what was rewritten meanwhile is copied as it was"
    for name in ("late", "early"):
        restore(tmp_path / name, tmp_path / f"{name} restored", quiet)
        assert content(tmp_path / f"{name} restored") == expected
        assert verify(OsDisk(tmp_path / f"{name} restored")).good


def test_the_first_start_is_one_after_an_unclean_stop_and_writes_to_no_linked_file(
    writer: Writer, tmp_path: Path
) -> None:
    writer.write(200)
    back_up(writer, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored", quiet)
    before = content(writer.folder)
    log = Log.open(OsDisk(tmp_path / "restored"), Still(), LogSettings(ahead=0, reserve=0))
    assert not log.recovery.clean
    assert not log.recovery.warnings
    assert log.recovery.next_lsn == writer.log.durable + 2**32
    assert sum(table.num_rows for table in log.replay()) == log.recovery.records
    log.close()
    assert content(writer.folder) == before


def test_bookmarks_of_the_original_are_refused_by_name(writer: Writer, tmp_path: Path) -> None:
    writer.write(5)
    back_up(writer, tmp_path / "backup")
    done = restore(tmp_path / "backup", tmp_path / "restored", quiet)
    view = stand_alone(OsDisk(tmp_path / "restored"))
    history = History(view, lambda: False)
    with pytest.raises(InvalidArgument, match=rf"77\|3\|.*{done['origin']}\|"):
        history.resolve(parse_span("77|3|"))
    assert history.resolve(parse_span(f"{done['origin']}|3|")) == (4, writer.log.durable + 1)
    view.close()


def test_a_checkpoint_goes_along_unless_it_knows_more(writer: Writer, tmp_path: Path) -> None:
    writer.write(5)
    writer.log.write_checkpoint(b"state", writer.log.durable)
    back_up(writer, tmp_path / "first")
    done = restore(tmp_path / "first", tmp_path / "one", quiet)
    found = checkpoints.newest(OsDisk(tmp_path / "one"), int(str(done["origin"])), [])
    assert found is not None
    assert (found.lsn, found.state) == (writer.log.durable, b"state")
    old = listing(writer.log)
    writer.write(1)
    writer.log.write_checkpoint(b"later", writer.log.durable)
    disk = OsDisk(writer.folder)
    run(Request(disk, Folder(disk).view(old), lambda: False, quiet), str(tmp_path / "second"), False, "", quiet)
    restore(tmp_path / "second", tmp_path / "two", quiet)
    assert not (tmp_path / "two" / "checkpoints").exists()


def test_stages_go_along(writer: Writer, tmp_path: Path) -> None:
    writer.write(1)
    (writer.folder / "stage").mkdir()
    (writer.folder / "stage" / f"{'a' * 32}.arrows").write_bytes(b"staged")
    (writer.folder / "stage" / f"{'b' * 32}.part").write_bytes(b"half")
    back_up(writer, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored", quiet)
    assert [path.name for path in (tmp_path / "restored" / "stage").iterdir()] == [f"{'a' * 32}.arrows"]


def test_users_and_vhosts_of_run_time_go_along(writer: Writer, tmp_path: Path) -> None:
    writer.write(20)
    accounts = Accounts()
    accounts.load(OsDisk(writer.folder))
    accounts.users["alice"] = Account("alice", keep("secret"), ("management",))
    accounts.vhosts["other"] = {"description": "of hers"}
    accounts.permissions["alice", "other"] = Permission("alice", "other", ".*", "^a", "")
    asyncio.run(accounts.save())
    told = back_up(writer, tmp_path / "backup")
    assert told["files"] == len(backups.read(OsDisk(tmp_path / "backup")).files)
    restore(tmp_path / "backup", tmp_path / "restored", quiet)
    found = Accounts()
    found.load(OsDisk(tmp_path / "restored"))
    assert found.state() == accounts.state()
    assert found.users["alice"].password.matches("secret")
    flip(tmp_path / "backup" / "accounts.json")
    with pytest.raises(LogDamaged, match=r"accounts\.json"):
        restore(tmp_path / "backup", tmp_path / "again", quiet)
    assert not list((tmp_path / "again").iterdir())


def test_a_log_whose_file_was_cut_is_not_backed_up(writer: Writer, tmp_path: Path) -> None:
    writer.write(200)
    victim = writer.folder / writer.log.segments()[1].name
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    with pytest.raises(LogDamaged, match=victim.name):
        back_up(writer, tmp_path / "backup")
    assert os.listdir(tmp_path / "backup") == []


@pytest.mark.parametrize("kind", ["relative", "inside", "used", "file", "backup"])
def test_a_target_that_cannot_be_one_is_refused(writer: Writer, tmp_path: Path, kind: str) -> None:
    writer.write(1)
    target = tmp_path / "target"
    if kind == "relative":
        target = Path("backup")
    elif kind == "inside":
        target = writer.folder / "backup"
    elif kind == "used":
        target.mkdir()
        (target / "mine").write_text("x")
    elif kind == "file":
        target.write_text("x")
    else:
        back_up(writer, target)
    before = sorted(os.listdir(target)) if target.is_dir() else None
    with pytest.raises(InvalidArgument, match="path|inside|not empty|cannot be|already"):
        back_up(writer, target)
    assert before is None or sorted(os.listdir(target)) == before


@pytest.fixture
def backup(writer: Writer, tmp_path: Path) -> Path:
    writer.write(200)
    back_up(writer, tmp_path / "backup", copy=True)
    return tmp_path / "backup"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 8
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["incomplete", "manifest", "missing", "flipped", "shorter", "longer", "empty"])
def test_a_backup_that_is_not_what_was_written_is_refused(backup: Path, tmp_path: Path, damage: str) -> None:
    segment = sorted((backup / "log").iterdir())[1]
    if damage == "incomplete":
        (backup / backups.NAME).unlink()
    elif damage == "manifest":
        flip(backup / backups.NAME)
    elif damage == "missing":
        segment.unlink()
    elif damage == "flipped":
        flip(segment)
    elif damage == "shorter":
        os.truncate(segment, segment.stat().st_size - 8)
    elif damage == "longer":
        segment.write_bytes(segment.read_bytes() + bytes(8))
    else:
        (backup / backups.NAME).write_bytes(b"")
    with pytest.raises(PenstockError) as caught:
        restore(backup, tmp_path / "restored", quiet)
    assert isinstance(caught.value, InvalidArgument if damage == "incomplete" else LogDamaged)
    if damage in ("missing", "flipped", "shorter", "longer"):
        assert segment.name in str(caught.value)
    assert not (tmp_path / "restored").exists() or os.listdir(tmp_path / "restored") == []


def test_a_folder_that_is_not_empty_is_not_restored_into(backup: Path, tmp_path: Path) -> None:
    place = tmp_path / "restored"
    place.mkdir()
    restore(backup, place, quiet)
    before = content(place)
    with pytest.raises(InvalidArgument, match="not empty"):
        restore(backup, place, quiet)
    assert content(place) == before
    shutil.rmtree(place)
    (place / "restore.part").mkdir(parents=True)
    with pytest.raises(InvalidArgument, match="unfinished restore"):
        restore(backup, place, quiet)


def test_nobody_serves_a_backup_or_writes_to_it(backup: Path) -> None:
    """It would be no copy of anything any more, and two servers would have one origin."""
    before = content(backup)
    with pytest.raises(
        SettingsError, match="is a backup, which never changes: penstock restore makes a data folder of it"
    ):
        make_folder(str(backup))
    with pytest.raises(InvalidArgument, match="is a backup, which never"):
        offline.compact(OsDisk(backup), SystemClock(), offline.Limits(None, None), Aims(), quiet)
    assert content(backup) == before


def test_nobody_serves_what_is_left_of_a_backup_that_was_cut_short(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the origin of the log and its beginning alone: a server began there, with what had been copied."""
    writer.write(20)
    target = tmp_path / "backup"
    seen = list[str]()

    def killed(*_: object) -> int:
        seen.extend(sorted(os.listdir(target)))
        raise KeyboardInterrupt

    monkeypatch.setattr(backups, "clear", lambda place: None)  # as after kill -9
    monkeypatch.setattr(backups._Backup, "_check", killed)
    with pytest.raises(KeyboardInterrupt):
        back_up(writer, target)
    assert "log" in seen
    for refuses in (  # a start, upkeep by hand, and another backup
        lambda: make_folder(str(target)),
        lambda: offline.compact(OsDisk(target), SystemClock(), offline.Limits(None, None), Aims(), quiet),
        lambda: back_up(writer, target),
    ):
        with pytest.raises(PenstockError, match="holds an unfinished backup"):
            refuses()
    assert sorted(os.listdir(target)) == seen
    with pytest.raises(InvalidArgument, match="holds no complete backup"):
        restore(target, tmp_path / "restored", quiet)


def test_a_backup_of_a_newer_format_is_refused(backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = backups.read(OsDisk(backup))
    monkeypatch.setattr(backups, "FORMAT", 2)
    (backup / backups.NAME).write_bytes(kept.encode())
    monkeypatch.undo()
    with pytest.raises(InvalidArgument, match="format 2"):
        restore(backup, tmp_path / "restored", quiet)


@pytest.mark.parametrize("name", ["../evil", "{place}", "checkpoints/../../evil", "log/./evil", "", "log/evil\0", 7])
def test_a_backup_names_no_file_outside_of_it(backup: Path, tmp_path: Path, name: object) -> None:
    """Whoever gives one away may write its manifest anew, with the sum."""
    place = tmp_path / "outside" / "evil"
    place.parent.mkdir()
    name = name.format(place=place) if isinstance(name, str) else name
    said = backups.read(OsDisk(backup))
    (backup / "evil").write_bytes(b"")
    more = backups.Kept(name, 0, 0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    (backup / backups.NAME).write_bytes(said._replace(files=[more, *said.files]).encode())
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LogDamaged, match="not the path of a file below its folder"):
        restore(backup, tmp_path / "to" / "data", quiet)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", ["link", "folder link", "pipe", "large", "large manifest"])
def test_a_backup_reads_nothing_outside_of_it_and_no_more_than_it_says(backup: Path, tmp_path: Path, kind: str) -> None:
    """Sum and size may be right: whoever made it may know what lies elsewhere."""
    segment = sorted((backup / "log").iterdir())[1]
    place = tmp_path / "elsewhere"
    if kind == "folder link":
        (backup / "log").rename(place)
        (backup / "log").symlink_to(place)
    elif kind == "large":
        os.truncate(segment, 1 << 40)
    elif kind == "large manifest":
        os.truncate(backup / backups.NAME, 1 << 40)
    else:
        segment.rename(place)
        segment.symlink_to(place) if kind == "link" else os.mkfifo(segment)
    told = r"1,099,511,627,776 bytes" if "manifest" in kind else rf"log/\S+ of the backup (cannot|has {1 << 40})"
    with pytest.raises(LogDamaged, match=told):
        restore(backup, tmp_path / "restored", quiet)
    assert not list((tmp_path / "restored").glob("*"))


def test_an_archive_removes_nothing_outside_of_it(tmp_path: Path) -> None:
    disk, place = archive_disk(str(tmp_path / "archive")), tmp_path / "elsewhere"
    place.mkdir()
    (place / "precious").write_bytes(b"")
    (tmp_path / "archive" / ".new").symlink_to(place)
    (tmp_path / "archive" / "messages").symlink_to(place)
    for said in (archive.Manifest(7), archive.Manifest(7, gone=("messages/precious",))):
        with pytest.raises(OSError, match="leads out of the folder"):
            archive.tidy(disk, said)
    assert (place / "precious").exists()


@pytest.mark.parametrize("text", [b"[]", b"{", b"{}", b'{"users": 5}', b'{"users": [{"name": "a"}]}'])
def test_accounts_that_are_none_are_refused_by_name_and_those_before_hold_on(tmp_path: Path, text: bytes) -> None:
    accounts = Accounts()
    accounts.vhosts["kept"] = {}
    digest = hashlib.sha256(text).hexdigest().encode()
    (tmp_path / "accounts.json").write_bytes(digest + b"\n" + text)
    with pytest.raises(SettingsError, match=r"accounts\.json of the data folder is none of users and vhosts"):
        accounts.load(OsDisk(tmp_path))
    assert "kept" in accounts.vhosts


@pytest.mark.parametrize("path", ["../log/precious", "/precious", "", "messages/../../precious"])
def test_an_archive_names_no_file_outside_of_it(tmp_path: Path, path: str) -> None:
    disk = OsDisk(tmp_path / "archive")
    file = archive.Part("messages/topic=q/date=2026-01-01/1.parquet", "q", 1, 2, 2, 9, 0, 0)
    for said in (archive.Manifest(7, gone=(path,)), archive.Manifest(7, files=(file._replace(path=path),))):
        archive.commit(disk, said)
        with pytest.raises(LogDamaged, match="not the path of a file below its folder"):
            archive.read(disk)
    said = archive.Manifest(7, files=(file,), gone=("messages/topic=q/date=2026-01-01/0.parquet",))
    archive.commit(disk, said)
    assert archive.read(disk) == said
