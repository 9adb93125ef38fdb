"""What `penstock log compact` does: asks a running server, or works on a data folder that nobody holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import DataFolderInUse, InvalidArgument
from penstock.units import parse_duration, parse_size

if TYPE_CHECKING:
    from penstock.log.rewriting.plan import Task
    from penstock.log.rewriting.rewrite import Made


def of_server(url: str, dry_run: bool) -> dict[str, Any]:
    """What the server answers when it is done."""
    from penstock.client import connect

    connect(url).close()  # says within seconds if nobody answers; a compaction may take long
    with connect(url, timeout=None) as client:
        return client.action("compact", with_vhost=False, dry_run=dry_run)


def of_folder(data: str, age: str | None, size: str | None, compress: bool, dry_run: bool) -> dict[str, Any]:
    """The same for a folder.  DataFolderInUse when a server has it; a dry run needs no lock."""
    from penstock.cli.logfiles import archive_of, listing, open_folder
    from penstock.cli.progress import bar
    from penstock.log.rewriting.plan import Aims
    from penstock.server.clock import SystemClock
    from penstock.server.upkeep import offline

    try:
        limits = offline.Limits(
            parse_duration(age) if age is not None else None, parse_size(size) if size is not None else None
        )
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    archive = archive_of(data)
    if archive is not None:
        limits = limits._replace(archive=archive.manifest)
    disk, clock, aims = open_folder(data), SystemClock(), Aims(compress=compress, cold=0)
    planned = offline.look(disk, clock, limits, aims)
    out: dict[str, Any] = {
        "planned": [task.plain() for task in planned], "deleted": 0, "done": 0, "freed": 0, "dropped": 0,
    }  # fmt: skip
    if dry_run:
        return out
    sizes = {one.name: (one.bytes, one.rows) for one in listing(data)}
    total = sum(task.bytes_before for task in planned)
    with bar("bytes") as show:
        done = 0

        def told(task: Task, made: Made) -> None:
            nonlocal done
            done += task.bytes_before
            show(done, total)
            out["done"] += len(task.segments)
            out["freed"] += task.bytes_before - made.end
            out["dropped"] += made.rows_before - made.rows

        try:
            gone = [sizes.get(name, (0, 0)) for name in offline.compact(disk, clock, limits, aims, told)]
        except DataFolderInUse as error:
            raise DataFolderInUse(f"{error}; leave --data away to have the running server do it") from None
        out["deleted"] = len(gone)
        out["freed"] += sum(size for size, _ in gone)
        out["dropped"] += sum(rows for _, rows in gone)
    return out
