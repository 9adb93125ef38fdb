"""`backup`, `restore` and `log archive`: copies of the log, in another folder or as Parquet, by a server or in a data
folder that none uses; and a data folder of its own from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from penstock.cli.output import (
    DEFAULT_URL,
    Json,
    Told,
    Url,
    Yes,
    asked,
    bar,
    counted,
    make_sure,
    note,
    root,
    telling,
    write,
    write_table,
)
from penstock.errors import DataFolderInUse, InvalidArgument, PreconditionFailed, told_as
from penstock.units import format_size, parse_duration

ArchiveFolder = Annotated[
    str | None,
    typer.Option("--archive", help="With --data: the folder of its archive.  By default `archive` in it."),
]


OF_A_FOLDER = "--archive goes with --data; a server goes by its settings"


@telling(root)
def backup(
    target: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    data: Annotated[
        str | None, typer.Option("--data", help="Back up this data folder, which no server uses at the moment.")
    ] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copy closed segments even where a hard link would do.")] = False,
    archive: ArchiveFolder = None,
    url: Url = DEFAULT_URL,
) -> Told:
    """Back up the log of a running server on this machine, or of a data folder with --data.

    Everything confirmed before the command began is in it.  Closed segments are hard links where the file system can.

    Example: penstock backup /backup/today
    """
    if data is not None:
        done = _backed_up_here(data, archive, target, copy)
    elif archive is not None:
        raise InvalidArgument(OF_A_FOLDER)
    else:
        done = asked(url, "backup", target=str(target.absolute()), copy=copy)
    return {"backup": str(target), **done}, _show_backup


def _show_backup(done: Mapping[str, Any]) -> None:
    target, rows, files = done["backup"], counted(done["rows"], "record"), counted(done["files"], "file")
    size = format_size(done["bytes"])
    write(f"{target}: {rows} up to LSN {done['last']:,} in {files}, {size}, every checksum right")
    if done["linked"]:
        links = f"closed segments that are hard links: {done['linked']:,}"
        note(f"{links}; copy {target} to another disk to be safe from this one")


def _backed_up_here(data: str, archive: str | None, target: Path, copy: bool) -> dict[str, Any]:
    from penstock.cli.logfiles import archive_at
    from penstock.history import open_folder
    from penstock.history.view import stand_alone
    from penstock.server.bulk.backup import run
    from penstock.server.bulk.requests import Request

    disk = open_folder(data)
    try:
        disk.lock()
    except DataFolderInUse as error:
        raise DataFolderInUse(f"{error}; leave --data away to back up the running server") from None
    try:
        with closing(stand_alone(disk)) as view, bar("bytes") as show:
            request = Request(disk, view, _never, show)
            place = archive_at(data, archive)
            return run(request, str(target.absolute()), copy, "", show, "" if place is None else str(place.absolute()))
    finally:
        disk.unlock()


def _never() -> bool:
    return False


@telling(root)
def restore(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="A folder that `penstock backup` made.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The data folder to make: new or empty.")],
    as_follower: Annotated[
        bool, typer.Option("--as-follower", help="For a member that joins the cluster whose log it is.")
    ] = False,
) -> Told:
    """Make a data folder from a backup, with an origin of its own.

    Queues, messages, streams and sinks are as they were; bookmarks of the original are refused.

    Example: penstock restore /backup/today /var/lib/penstock
    """
    from penstock.server.bulk.restore import restore as run

    with bar("bytes") as show:
        done: dict[str, Any] = run(backup, data, show, follower=as_follower)
    facts, text = {"data": str(data), **done}, f"{data}: {counted(done['rows'], 'record')} up to LSN {done['last']:,}"
    if as_follower:
        return facts, f"{text}; served with the settings of the cluster it joins"
    begin = f"its bookmarks begin with {done['origin']}|, those of the original with {done['old_origin']}|"
    return facts, f"{text}, {format_size(done['bytes'])}; {begin}"


def archived(data: str, named: str | None = None) -> dict[str, Any] | None:
    """What is archived, for people."""
    from penstock.cli.logfiles import archive_of

    found = archive_of(data, named)
    if found is None:
        return None
    manifest = found.manifest
    return {
        "spans": manifest.spans, "files": len(manifest.files), "rows": manifest.rows, "bytes": manifest.size,
    }  # fmt: skip


def archive(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--dry", help="Say what would be done, and change nothing.")
    ] = False,
    prune: Annotated[
        str | None,
        typer.Option("--prune", metavar="AGE", help="Instead: remove archived days that are older, as in 365d."),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Instead, with --data: make a damaged or lost manifest anew from the files."),
    ] = False,
    anew: Annotated[
        bool,
        typer.Option("--anew", help="Instead, with --data: the next archive begins without what an earlier one had."),
    ] = False,
    origin: Annotated[
        list[int] | None,
        typer.Option("--origin", help="With --repair: of a log whose backup this folder was restored from."),
    ] = None,
    yes: Yes = False,
    data: Annotated[
        str | None, typer.Option("--data", help="Archive this data folder, which no server uses at the moment.")
    ] = None,
    folder: Annotated[
        str | None, typer.Option("--archive", help="With --data: where the files go.  Without: `archive` in it.")
    ] = None,
    compression: Annotated[str, typer.Option("--compression", help="With --data: zstd, snappy or none.")] = "zstd",
    topics: Annotated[
        int, typer.Option("--topics", min=0, max=1000, help="With --data: topics with folders of their own.")
    ] = 64,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> Told:
    """Write closed segments that are not archived yet as Parquet, partitioned by topic and day.

    A running server goes by its settings ([log] archive); it does this by itself, soon after a segment is closed.

    Archived days stay until [log] archive.retention says otherwise, or --prune.

    Example: penstock log archive --dry-run
    """
    if repair:
        return _repair(data, folder, origin or [], dry_run=dry_run)
    if anew:
        return _anew(data, yes=yes or json)
    if prune is not None:
        return _prune(prune, data, folder, url, dry_run=dry_run, yes=yes or json)
    if compression not in ("zstd", "snappy", "none"):
        raise InvalidArgument(f"--compression is {compression!r}; there is zstd, snappy and none")
    if data is not None:
        done = _archived_here(data, folder, compression, topics, dry_run)
    elif folder is not None:
        raise InvalidArgument(OF_A_FOLDER)
    else:
        done = _archived_by_server(url, dry_run)
    return done, _show_planned if dry_run else _show_archived


def _show_planned(done: dict[str, Any]) -> None:
    if not done["planned"]:
        write("nothing to do: every closed segment is archived")
        return
    rows = [(one["first"], one["last"], one["segments"], format_size(one["bytes"])) for one in done["planned"]]
    write_table(("first", "last", "segments", "size"), rows)


def _show_archived(done: dict[str, Any]) -> None:
    write(
        f"{counted(done['done'], 'segment')} archived; the archive has {counted(done['rows'], 'record')} in "
        f"{counted(done['files'], 'file')}, {format_size(done['bytes'])}"
    )
    if behind := done.get("behind", done["left"]):
        why = f": {done['why']}" if done.get("why") else "; the server's log says why"
        note(f"warning: {counted(behind, 'closed segment')} not archived{why}")


def _archived_by_server(url: str, dry_run: bool) -> dict[str, Any]:
    from penstock.client import connect

    connect(url).close()  # says within seconds if nobody answers; archiving may take long
    with connect(url, timeout=None) as client, bar("segments") as show:
        if dry_run:
            return client.action("log_archive", with_vhost=False, dry_run=True)
        total = 0
        first: list[Any] | None = None
        while True:
            told = client.action("log_archive", with_vhost=False, dry_run=False)
            first = told["planned"] if first is None else first
            total += told["done"]
            show(total, total + told["left"])
            if not told["worked"]:
                return {**told, "planned": first, "done": total}


def _archived_here(data: str, folder: str | None, compression: str, topics: int, dry_run: bool) -> dict[str, Any]:
    from penstock.history import ARCHIVE_FOLDER, open_folder
    from penstock.log.archive import archive_disk
    from penstock.log.archive.file_writer import Form
    from penstock.log.archive.repairing import has_files
    from penstock.log.room import told_of_disk
    from penstock.server.base.clock import SystemClock
    from penstock.server.upkeep.offline import archive as run

    disk = open_folder(data)
    place = folder if folder is not None else str(Path(data) / ARCHIVE_FOLDER)
    try:
        with bar("LSNs") as show, told_of_disk(f"the archive's folder {place}"):
            form = Form(compression, topics)
            _refuse_shared(place)
            target, others = archive_disk(place), has_files(place)
            return run(disk, target, SystemClock(), form, show, dry_run=dry_run, others=others)
    except DataFolderInUse as error:
        raise DataFolderInUse(f"{error}; leave --data away to have the running server do it") from None


def _refuse_shared(place: str | Path) -> None:
    """An archive that members of a cluster share is the leader's."""
    from penstock.server.cluster.shared_archive import terms

    if Path(place).is_dir() and terms(Path(place)):
        raise PreconditionFailed(f"the archive in {place} is a cluster's: leave --data away to have its leader do it")


def _prune(age: str, data: str | None, folder: str | None, url: str, *, dry_run: bool, yes: bool) -> Told:
    """Remove archived days that are older."""
    with told_as(InvalidArgument, f"--prune {age}: "):
        micros = parse_duration(age)
    ask = partial(_pruned, micros, data, folder, url)
    due = ask(dry_run=True)
    if due is not None and not dry_run:
        question = f"remove {counted(due['rows'], 'archived record')} of the days up to {due['day']}?"
        make_sure(question, yes, status=1)
        due = ask(dry_run=False)
    if due is None:
        text = f"nothing to do: no archived day is older than {age}, or a stream may still ask for it"
        return {"pruned": due}, text
    done = "would go" if dry_run else "gone"
    what = f"{counted(due['rows'], 'record')} in {counted(due['files'], 'file')}, {format_size(due['bytes'])}"
    return {"pruned": due}, f"days up to {due['day']} {done}: {what}"


def _pruned(micros: int, data: str | None, folder: str | None, url: str, *, dry_run: bool) -> dict[str, Any] | None:
    from penstock.client import connect

    if data is None:
        if folder is not None:
            raise InvalidArgument(OF_A_FOLDER)
        with connect(url, timeout=None) as client:
            told = client.action("log_archive_prune", with_vhost=False, age=micros / 1e6, dry_run=dry_run)
            return cast("dict[str, Any] | None", told["pruned"])
    from penstock.cli.logfiles import archive_at
    from penstock.history import open_folder
    from penstock.log.archive import archive_disk
    from penstock.server.base.clock import SystemClock
    from penstock.server.upkeep.offline import prune as run

    place = archive_at(data, folder)
    if place is None:
        return None
    _refuse_shared(place)
    return run(open_folder(data), archive_disk(str(place)), SystemClock(), micros, dry_run=dry_run)


def _repair(data: str | None, folder: str | None, before: list[int], *, dry_run: bool) -> Told:
    from penstock.history import ARCHIVE_FOLDER, open_folder
    from penstock.log.archive import archive_disk
    from penstock.log.archive.repairing import paths_of
    from penstock.server.base.clock import SystemClock
    from penstock.server.upkeep.offline import repair as run

    if data is None:
        raise InvalidArgument("--repair goes with --data: stop the server first")
    place = folder if folder is not None else str(Path(data) / ARCHIVE_FOLDER)
    with bar("files") as show:
        made = run(
            open_folder(data), archive_disk(place), paths_of(place), SystemClock(), show, dry_run=dry_run, before=before
        )  # fmt: skip
    if made is None:
        nothing = {"repaired": False, "files": 0, "rows": 0, "spans": ()}
        return nothing, "nothing to do: the manifest is as it was written"
    done = "can be made anew" if dry_run else "is made anew"
    what = f"{counted(made.rows, 'record')} in {counted(len(made.files), 'file')}"
    ranges = ", ".join(f"{a} to {b - 1}" for a, b in made.spans)
    facts = {"repaired": True, "files": len(made.files), "rows": made.rows, "spans": made.spans}
    return facts, f"the manifest {done}: {what}, LSNs {ranges}"


def _anew(data: str | None, *, yes: bool) -> Told:
    from penstock.history import open_folder
    from penstock.server.base.clock import SystemClock
    from penstock.server.upkeep.offline import anew as run

    if data is None:
        raise InvalidArgument("--anew goes with --data: stop the server first")
    disk = open_folder(data)
    make_sure("begin a new archive, without the history that the one before has?", yes, status=1)
    known = run(disk, SystemClock())
    text = "the next archive begins anew" if known else "nothing to do: no archive is known here"
    return {"forgotten": known}, text
