"""`backup` and `restore`: the log as files of another folder, and a data folder of its own from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from penstock.cli.output import DEFAULT_URL, Json, Url, bar, counted, note, write, write_json
from penstock.errors import DataFolderInUse
from penstock.units import format_size


def add_to(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    app.command()(backup)
    app.command()(restore)


def backup(
    target: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    data: Annotated[
        str | None, typer.Option("--data", help="Back up this data folder, which no server uses at the moment.")
    ] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copy closed segments even where a hard link would do.")] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Back up the log of a running server on this machine, or of a data folder with --data.

    Everything confirmed before the command began is in it.  Closed segments are hard links where the file system can.

    Example: penstock backup /backup/today
    """
    done = _of_folder(data, target, copy) if data is not None else _of_server(url, target, copy)
    if json:
        write_json({"backup": str(target), **done})
        return
    write(
        f"{target}: {counted(done['rows'], 'record')} up to LSN {done['last']:,} in {counted(done['files'], 'file')}, "
        f"{format_size(cast('int', done['bytes']))}, every checksum right"
    )
    if done["linked"]:
        note(
            f"closed segments that are hard links: {done['linked']:,}; "
            f"copy {target} to another disk to be safe from this one"
        )


def _of_server(url: str, target: Path, copy: bool) -> dict[str, Any]:
    from penstock.client import connect

    connect(url).close()  # says within seconds if nobody answers; a backup may take long
    with connect(url, timeout=None) as client:
        return client.action("backup", with_vhost=False, target=str(target.absolute()), copy=copy)


def _of_folder(data: str, target: Path, copy: bool) -> dict[str, Any]:
    from penstock.cli.logfiles import archive_place, open_folder
    from penstock.history.alone import stand_alone
    from penstock.server.bulk.backup import run
    from penstock.server.bulk.jobs import Request

    disk = open_folder(data)
    try:
        disk.lock()
    except DataFolderInUse as error:
        raise DataFolderInUse(f"{error}; leave --data away to back up the running server") from None
    try:
        view = stand_alone(disk)
        try:
            with bar("bytes") as show:
                request = Request(disk, view, _never, show)
                place = archive_place(data)
                archive = "" if place is None else str(place.absolute())
                return run(request, str(target.absolute()), copy, "", show, archive)
        finally:
            view.close()
    finally:
        disk.unlock()


def _never() -> bool:
    return False


def restore(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="A folder that `penstock backup` made.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The data folder to make: new or empty.")],
    json: Json = False,
) -> None:
    """Make a data folder from a backup, with an origin of its own.

    Queues, messages, streams and sinks are as they were; bookmarks of the original are refused.

    Example: penstock restore /backup/today /var/lib/penstock
    """
    from penstock.server.bulk.restore import restore as run

    with bar("bytes") as show:
        done = run(backup, data, show)
    if json:
        write_json({"data": str(data), **done})
        return
    write(
        f"{data}: {counted(cast('int', done['rows']), 'record')} up to LSN {done['last']:,}, "
        f"{format_size(cast('int', done['bytes']))}; "
        f"its bookmarks begin with {done['origin']}|, those of the original with {done['old_origin']}|"
    )
