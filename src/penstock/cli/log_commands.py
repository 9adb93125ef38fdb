"""`log ls|show|verify|compact|export` and `audit`: the log as files, as records, as a table, and as evidence."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock.cli.backups import ArchiveFolder, archive, archived
from penstock.cli.output import (
    DEFAULT_URL,
    JsonLines,
    Told,
    Url,
    asked,
    bar,
    counted,
    family,
    note,
    root,
    telling,
    write,
    write_json,
    write_table,
)
from penstock.errors import InvalidArgument, LogDamaged
from penstock.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.core.audit_histories import Report
    from penstock.log.catalog import SegmentInfo
    from penstock.log.copies import Compared, Copy


DataFolder = Annotated[
    str | None, typer.Option("--data", help="The server's data folder.  Without it and --url: ./data.")
]
OfServer = Annotated[
    str | None,
    typer.Option("--url", envvar="PENSTOCK_URL", help="Ask a running server, about what is durable there."),
]


def _place(data: str | None, url: str | None) -> tuple[str, str | None]:
    """The folder, and the server to ask instead: a folder that was named comes first."""
    return ("./data", url) if data is None else (data, None)


app = family("log", "Look into the log and check it.")
telling(app)(archive)


@telling(app, "ls")
def ls(data: DataFolder = None, archive: ArchiveFolder = None, url: OfServer = None) -> Told:
    """List the segments with their LSNs, the records they hold, sizes, how often each was rewritten; and the archive.

    Example: penstock log ls --data ./data
    """
    from penstock.cli.logfiles import listing
    from penstock.log.catalog import SegmentInfo

    folder, url = _place(data, url)
    if url is None:
        listed, kept = listing(folder), archived(folder, archive)
    else:
        told = asked(url, "segments")
        listed, kept = [SegmentInfo(**one) for one in told["segments"]], told.get("archive")

    def is_archived(one: SegmentInfo) -> bool:
        return kept is not None and any(a <= one.first and one.last < b for a, b in kept["spans"])

    facts = [one._asdict() | ({} if kept is None else {"archived": is_archived(one)}) for one in listed]
    return facts, lambda _: _show_segments([(one, is_archived(one)) for one in listed], kept)


def _show_segments(listed: Sequence[tuple[SegmentInfo, bool]], kept: Mapping[str, Any] | None) -> None:
    """Segments, of which each is archived or not, and the archive."""
    rows = [
        (
            one.first, one.last, one.batches, one.rows, one.span, format_size(one.bytes), one.generation,
            (("compressed" if one.compressed else "closed") if one.closed else "open")
            + (", archived" if archived else ""),
        )
        for one, archived in listed
    ]  # fmt: skip
    write_table(("first", "last", "batches", "records", "LSNs", "size", "rewritten", "state"), rows)
    if kept is not None:
        spans = ", ".join(f"{a:,} to {b - 1:,}" for a, b in kept["spans"]) or "nothing yet"
        write(f"archived: {spans} ({_extent(kept)})")
        if kept.get("why"):
            note(f"warning: {kept['why']}")


def _extent(kept: Mapping[str, Any]) -> str:
    rows, files = counted(kept["rows"], "record"), counted(kept["files"], "file")
    return f"{rows} in {files}, {format_size(kept['bytes'])}"


@app.command()
def show(
    first: Annotated[int, typer.Option("--from", min=0, help="First LSN.")] = 0,
    last: Annotated[int | None, typer.Option("--to", min=0, help="Last LSN.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most records to print.")] = 100,
    data: DataFolder = None,
    url: OfServer = None,
    json: JsonLines = False,
) -> None:
    """Print records by LSN.

    Example: penstock log show --from 1000 --to 1010 --json
    """
    from penstock.cli.logfiles import records
    from penstock.records.kinds import Kind

    if last is not None and last < first:
        raise InvalidArgument(f"--from {first} is above --to {last}")
    folder, url = _place(data, url)
    names = {int(kind): kind.name.lower() for kind in Kind}
    table: list[tuple[object, ...]] = []
    shown = 0
    for batch in records(folder, url, first, last):
        for row in cast("list[dict[str, object]]", batch.slice(0, limit - shown).to_pylist()):
            row["kind"] = names.get(cast("int", row["kind"]), str(row["kind"]))
            shown += 1
            if json:
                write_json(row, indent=False)
            else:
                body = cast("bytes | None", row["body"]) or b""
                cut = body[:60].decode("utf-8", "replace") + ("..." if len(body) > 60 else "")
                time = cast(datetime, row["time"]).isoformat(" ", "milliseconds").removesuffix("+00:00")
                table.append((row["lsn"], row["kind"], row["name"], time, len(body), cut))
        if shown >= limit:
            break
    if not json:
        write_table(
            ("lsn", "kind", "name", "time (UTC)", "bytes", "body"),
            table,
            whole=("lsn", "kind", "time (UTC)", "bytes"),
            cut_last=True,
        )


@telling(app)
def verify(data: DataFolder = None, archive: ArchiveFolder = None, url: OfServer = None) -> Told:
    """Read the whole log and its archive and compare every checksum.  Exit status 4 when bytes in the middle are wrong.

    Example: penstock log verify --data ./data
    """
    folder, url = _place(data, url)
    facts = _verified(folder, archive) if url is None else asked(url, "log_verify")
    good = not facts["damage"]
    return {"good": good, **facts}, _show_verified, None if good else LogDamaged("\n".join(facts["damage"]))


def _show_verified(facts: Mapping[str, Any]) -> None:
    write(
        f"{counted(len(facts['segments']), 'segment')}, {facts['batches']:,} batches, "
        f"{counted(facts['rows'], 'record')}, {format_size(facts['bytes'])}, last LSN {facts['last_lsn']:,}"
    )
    if kept := facts.get("archive"):
        files, rows = counted(kept["files"], "file"), counted(kept["rows"], "record")
        write(f"archive: {files}, {rows}, {format_size(kept['bytes'])}")
    for warning in facts["warnings"]:
        note(f"warning: {warning}")
    if facts["good"]:
        write("every checksum is right")


def _verified(data: str, archive: str | None) -> dict[str, Any]:
    from penstock.cli.logfiles import archive_at
    from penstock.history import open_folder
    from penstock.log.verify import verify as verify_log

    report = verify_log(open_folder(data))
    facts = asdict(report)
    facts["segments"] = [segment._asdict() for segment in report.segments]
    if (place := archive_at(data, archive)) is not None:
        from penstock.log.archive import archive_disk
        from penstock.log.archive.repairing import check

        found = check(archive_disk(str(place)), origin=report.origin)
        if found is not None:
            facts["archive"] = found.told()
            facts["damage"] += found.damage
    return facts


@telling(app)
def compact(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    data: Annotated[
        str | None, typer.Option("--data", help="Compact this data folder, which no server uses at the moment.")
    ] = None,
    age: Annotated[
        str | None, typer.Option("--age", help="With --data: what is older and needed by nobody may go, as in 7d.")
    ] = None,
    size: Annotated[
        str | None, typer.Option("--size", help="With --data: the same beyond this size of the log, as in 50GB.")
    ] = None,
    compress: Annotated[
        bool, typer.Option("--compress", help="With --data: compress old segments, whatever waits in them.")
    ] = False,
    url: Url = DEFAULT_URL,
) -> Told:
    """Rewrite closed segments: join small batches, and leave out what is past retention and needed by nobody.

    A running server goes by its settings ([log] retention, compress_cold); it does all this by itself, in time.

    Example: penstock log compact --dry-run
    """
    from penstock.cli.logfiles import compacted

    if data is None:
        if age is not None or size is not None or compress:
            raise InvalidArgument("--age, --size and --compress go with --data; a server goes by its settings")
        done = asked(url, "compact", dry_run=dry_run)
    else:
        done = compacted(data, age, size, compress, dry_run)
    if dry_run:
        nothing = "nothing to do: no segment is worth rewriting, and none may go"
        return done, _show_planned if done["planned"] else nothing
    gone, left_out = counted(done["deleted"], "segment"), counted(done["dropped"], "record")
    freed = format_size(max(0, done["freed"]))
    return done, f"{gone} deleted, {done['done']:,} rewritten: {left_out} left out, {freed} freed"


def _show_planned(done: Mapping[str, Any]) -> None:
    rows = [
        (
            one["why"], one["first"], one["last"], one["segments"], one["rows"], one["rows_after"],
            format_size(one["bytes"]), format_size(one["bytes_after"]),
        )
        for one in done["planned"]
    ]  # fmt: skip
    write_table(("why", "first", "last", "segments", "records", "kept", "size", "then, about"), rows)


@telling(app)
def export(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="By its ending Parquet, Arrow, JSON lines or CSV; - is standard output."),
    ],
    topic: Annotated[
        str | None, typer.Option("--topic", help="One topic.  Without: every one of the exchange.")
    ] = None,
    pattern: Annotated[str | None, typer.Option("--pattern", help="Topics that a regular expression matches.")] = None,
    exchange: Annotated[str, typer.Option("--exchange", help="Exchange of the topics.")] = "",
    vhost: Annotated[
        str | None, typer.Option("--vhost", help="Vhost of the topics, with --data; a URL names its own.")
    ] = None,
    records: Annotated[
        bool, typer.Option("--records", help="Every record as the log stores it, control records too.")
    ] = False,
    first: Annotated[str, typer.Option("--from", help="First LSN, bookmark, time, or EPOCH.")] = "EPOCH",
    last: Annotated[str, typer.Option("--to", help="Last LSN, bookmark, time, or NOW.")] = "NOW",
    filter: Annotated[str | None, typer.Option("--filter", help="Messages that an expression lets through.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Most rows to write.")] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", help="Names with commas between them; see the documentation.")
    ] = None,
    body: Annotated[str, typer.Option("--body", help="binary, text or json; by default what the format can.")] = "",
    format: Annotated[str | None, typer.Option("--format", help="parquet, arrow, arrows, jsonl or csv.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
    data: DataFolder = None,
    url: OfServer = None,
) -> Told:
    """Write messages, or all records, to a file that other tools read.  It appears when it is whole.

    Example: penstock log export orders.parquet --topic orders --from 2026-11-20T08:00:00
    """
    from penstock.cli.logfiles import COLUMNS, Wanted, exported_by_server, exported_here
    from penstock.cli.logfiles import export as run

    target = None if file == "-" else Path(file)
    form = _form(file, format, overwrite=overwrite)
    chosen = COLUMNS if columns is None else _named_columns(columns)
    if topic is not None and pattern is not None:
        raise InvalidArgument("name a topic or a pattern, not both")
    if records and (topic, pattern, exchange, vhost, filter, columns) != (None, None, "", None, None, None):
        raise InvalidArgument(
            "--records writes all records: it goes without --topic, --pattern, --exchange, --vhost, --filter and "
            "--columns"
        )
    folder, url = _place(data, url)
    if url is not None and vhost is not None:
        raise InvalidArgument(
            f"--vhost {vhost!r} goes with --data; a URL names its own, as in penstock://localhost/shop"
        )
    wanted = Wanted(topic, pattern, exchange, vhost or "/", first, last, filter, limit, chosen, records)
    reading = exported_here(folder, wanted) if url is None else exported_by_server(url, wanted)
    with reading as (source, start, end), bar("LSNs") as show:
        done = run(source, start, end, target, form, body, limit, show)
    for warning in done.warnings:
        note(f"warning: {warning}")
    if target is None:
        return None
    facts = {"file": file, "format": form, "rows": done.rows, "bytes": done.bytes, "from": start, "to": end - 1}
    return facts, f"{file}: {counted(done.rows, 'row')}, {format_size(done.bytes)}"


def _form(file: str, format: str | None, *, overwrite: bool) -> str:
    """The format to write.  InvalidArgument where none is known, or the file is there."""
    from penstock.cli.messagefiles import FORMATS, check_new

    target = None if file == "-" else Path(file)
    form = format or ("jsonl" if target is None else FORMATS.get(target.suffix.lower()))
    if form is None:
        raise InvalidArgument(f"{file}: name the format with --format, or end the name with {', '.join(FORMATS)}")
    if target is not None:
        check_new(target, overwrite=overwrite)
    return form


def _named_columns(text: str) -> tuple[str, ...]:
    from penstock.wire.flight.tickets import REPLAY_COLUMNS

    chosen = tuple(name.strip() for name in text.split(","))
    for name in chosen:
        if name not in REPLAY_COLUMNS:
            raise InvalidArgument(f"there is no column {name!r}; there are {', '.join(REPLAY_COLUMNS)}")
    return chosen


@telling(root)
def audit(
    folders: Annotated[
        list[str] | None, typer.Argument(help="With --members: data folders of a cluster's members.")
    ] = None,
    data: DataFolder = None,
    archive: ArchiveFolder = None,
    url: OfServer = None,
    members: Annotated[
        bool, typer.Option("--members", help="Whether these folders hold the same log, up to what is committed.")
    ] = False,
    spark: Annotated[
        bool, typer.Option("--spark", help="Have Spark read the folder in parallel; the verdict is the same.")
    ] = False,
    master: Annotated[str, typer.Option("--master", help="With --spark: local[*], or spark://host:port.")] = "local[*]",
) -> Told:
    """Prove from the log, and its archive, that each guarantee held.  Exit status 1, with the LSNs, where one did not.

    With an archive that goes back to the beginning, so does the audit; else it begins at the log's newest base.

    Example: penstock audit --data ./data --json
    Example: penstock audit --members node-1/data node-2/data node-3/data
    """
    if members or folders:
        return _audit_members(folders or [], members)
    folder, url = _place(data, url)
    if spark:
        report = _audited_by_spark(folder, archive, master)
    else:
        report = _audited(folder, archive) if url is None else asked(url, "log_audit")
    facts = {name: report[name] for name in ("counts", "findings")}
    return facts, _show_audit, typer.Exit(1) if report["findings"] else None


def _show_audit(report: Mapping[str, Any]) -> None:
    write_table(("what", "count"), list(report["counts"].items()))
    for one in report["findings"]:
        write(f"{one['guarantee']}: {one['text']} (LSN {', '.join(map(str, one['lsns'][:20]))})")
    if not report["findings"]:
        write("every guarantee held")


def _audited_by_spark(data: str, archive: str | None, master: str) -> dict[str, Any]:
    from penstock.cli.logfiles import archive_at
    from penstock.history import open_folder
    from penstock.spark import session
    from penstock.spark.audits import audit as run

    open_folder(data)  # says at once when there is none
    place = archive_at(data, archive)
    with session(master) as made:
        return _told(run(made, data, archive=place))


def _audited(data: str, archive: str | None) -> dict[str, Any]:
    from penstock.cli.logfiles import audit as run

    return _told(run(data, archive=archive))


def _told(report: Report) -> dict[str, Any]:
    findings = [{"guarantee": one.guarantee, "lsns": one.lsns, "text": one.text} for one in report.findings]
    return {"counts": report.counts, "findings": findings}


def _audit_members(folders: list[str], members: bool) -> Told:
    from penstock.history import open_folder
    from penstock.log.copies import compare

    if not members:
        raise InvalidArgument(f"{folders[0]!r} goes with --members; a single folder is named with --data")
    if len(folders) < 2:
        raise InvalidArgument("--members: name the data folders of two members at least")
    report = compare([(folder, open_folder(folder)) for folder in folders])
    findings: list[dict[str, Any]] = [
        {"guarantee": "copies", "lsns": lsns, "text": said} for said, lsns in report.wrong
    ]
    copies = [{**asdict(one), "kept": [kept._asdict() for kept in one.kept]} for one in report.copies]
    facts = {
        "copies": copies, "terms": [one._asdict() for one in report.terms], "bytes": report.bytes, "findings": findings
    }  # fmt: skip
    return facts, lambda _: _show_copies(report, findings), typer.Exit(1) if findings else None


def _show_copies(report: Compared, findings: Sequence[Mapping[str, Any]]) -> None:
    """The copies of a log and its terms as tables, then what is wrong with them."""
    write_table(
        ("folder", "first LSN", "last LSN", "term", "committed", "lacks", "of its own"),
        [
            (one.folder, one.first, one.last, one.term, one.committed, one.lacks, one.unconfirmed)
            for one in report.copies
        ],
    )
    write_table(
        ("term", "led by", "from LSN", "found up to LSN"),
        [(one.term, one.member, one.first, one.before) for one in report.terms],
    )
    for one in report.copies:
        for said in _explained(one):
            write(said)
    for finding in findings:
        write(f"WRONG: {finding['text']} (LSN {', '.join(map(str, finding['lsns']))})")
    if not findings:
        write(f"the same log: {counted(report.bytes, 'byte')} and {counted(report.records, 'record')} compared")


def _explained(copy: Copy) -> Iterator[str]:
    """What differs and may."""
    if copy.parts_at:
        many = counted(copy.unconfirmed, "record")
        why = "was never confirmed: it is cut, and kept, when the member joins again"
        yield f"{copy.folder}: {many} from LSN {copy.parts_at} on {why}"
    elif copy.lacks:
        yield f"{copy.folder}: behind by {counted(copy.lacks, 'record')}"
    for kept in copy.kept:
        what = f"LSN {kept.first} to {kept.last}, {counted(kept.rows, 'record')}" if kept.rows else "no whole batch"
        yield f"{copy.folder}: gave up {what}, in {kept.name}"
