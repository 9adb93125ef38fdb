"""`penstock log archive`, and how commands about a data folder find its archive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock.cli.output import DEFAULT_URL, Json, Url, counted, note, write, write_json, write_table
from penstock.errors import DataFolderInUse, InvalidArgument
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.log.archive.reading import Archive

FOLDER = "archive"

ArchiveFolder = Annotated[
    str | None,
    typer.Option("--archive", help="With --data: the folder of its archive.  By default `archive` in it."),
]


def archive_of(data: str, named: str | None = None) -> Archive | None:
    """The archive of a data folder, if there is one.  InvalidArgument for one that was named and is not there."""
    from penstock.log.archive import archive_disk
    from penstock.log.archive.reading import Archive

    place = archive_place(data, named)
    return None if place is None else Archive(archive_disk(str(place)))


def archive_place(data: str, named: str | None = None) -> Path | None:
    """Its folder."""
    from penstock.log.archive.manifest import NAME

    place = Path(named) if named is not None else Path(data) / FOLDER
    if (place / NAME).is_file():
        return place
    if named is not None:
        raise InvalidArgument(f"{named} is no archive: it has no {NAME}")
    return None


def archived(data: str, named: str | None = None) -> dict[str, Any] | None:
    """What is archived, for people."""
    found = archive_of(data, named)
    if found is None:
        return None
    manifest = found.manifest
    return {
        "spans": manifest.spans, "files": len(manifest.files), "rows": manifest.rows, "bytes": manifest.size,
    }  # fmt: skip


def add_to(app: typer.Typer) -> None:
    """Put this command into the tree."""
    app.command("archive")(archive)


def archive(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--dry", help="Say what would be archived, and change nothing.")
    ] = False,
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
) -> None:
    """Write closed segments that are not archived yet as Parquet, partitioned by topic and day.

    A running server goes by its settings ([log] archive); it does this by itself, soon after a segment is closed.

    Example: penstock log archive --dry-run
    """
    if compression not in ("zstd", "snappy", "none"):
        raise InvalidArgument(f"--compression is {compression!r}; there is zstd, snappy and none")
    if data is not None:
        done = _of_folder(data, folder, compression, topics, dry_run)
    elif folder is not None:
        raise InvalidArgument("--archive goes with --data; a server goes by its settings")
    else:
        done = _of_server(url, dry_run)
    if json:
        write_json(done)
        return
    planned = cast("list[dict[str, Any]]", done["planned"])
    if dry_run:
        if not planned:
            write("nothing to do: every closed segment is archived")
            return
        write_table(
            ("first", "last", "segments", "size"),
            [(one["first"], one["last"], one["segments"], format_size(one["bytes"])) for one in planned],
        )
        return
    write(
        f"{counted(done['done'], 'segment')} archived; the archive has {counted(done['rows'], 'record')} in "
        f"{counted(done['files'], 'file')}, {format_size(done['bytes'])}"
    )
    if behind := done.get("behind", done["left"]):
        why = f": {done['why']}" if done.get("why") else "; the server's log says why"
        note(f"warning: {counted(behind, 'closed segment')} not archived{why}")


def _of_server(url: str, dry_run: bool) -> dict[str, Any]:
    from penstock.cli.progress import bar
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


def _of_folder(data: str, folder: str | None, compression: str, topics: int, dry_run: bool) -> dict[str, Any]:
    from penstock.cli.logfiles import open_folder
    from penstock.cli.progress import bar
    from penstock.log.archive import archive_disk
    from penstock.log.archive.writing import Form
    from penstock.server.bulk.archiving import told_when_full
    from penstock.server.clock import SystemClock
    from penstock.server.upkeep.archive_offline import archive as run

    disk = open_folder(data)
    place = folder if folder is not None else str(Path(data) / FOLDER)
    try:
        with bar("LSNs") as show, told_when_full(place):
            form = Form(compression, topics)
            return run(disk, archive_disk(place), SystemClock(), form, show, dry_run=dry_run)
    except DataFolderInUse as error:
        raise DataFolderInUse(f"{error}; leave --data away to have the running server do it") from None
