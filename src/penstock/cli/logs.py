"""`log ls|show|verify` and `audit`: the log as files, as records, and as evidence."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, cast

import typer

from penstock.cli.output import DataFolder, Json, note, write, write_json, write_table
from penstock.errors import LogDamaged
from penstock.units import format_size

app = typer.Typer(help="Look into the log and check it.", no_args_is_help=True, rich_markup_mode=None)


@app.command("ls")
def ls(data: DataFolder = "./data", json: Json = False) -> None:
    """List the segments with their LSNs and sizes.

    Example: penstock log ls --data ./data
    """
    from penstock.cli.logfiles import open_folder
    from penstock.log.verify import segments

    listed = segments(open_folder(data))
    if json:
        write_json([facts._asdict() for facts in listed])
        return
    write_table(
        ("file", "first", "last", "batches", "records", "size", ""),
        [
            (
                facts.name,
                facts.first,
                facts.last,
                facts.batches,
                facts.rows,
                format_size(facts.bytes),
                "closed" if facts.closed else "open",
            )
            for facts in listed
        ],
    )


@app.command()
def show(
    first: Annotated[int, typer.Option("--from", min=0, help="First LSN.")] = 0,
    last: Annotated[int | None, typer.Option("--to", help="Last LSN.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most records to print.")] = 100,
    data: DataFolder = "./data",
    json: Json = False,
) -> None:
    """Print records by LSN.

    Example: penstock log show --from 1000 --to 1010 --json
    """
    from penstock.cli.logfiles import open_folder, rows
    from penstock.records.chunks import LSN_LIMIT
    from penstock.records.kinds import Kind

    names = {int(kind): kind.name.lower() for kind in Kind}
    table: list[tuple[object, ...]] = []
    shown = 0
    for batch in rows(open_folder(data), first, LSN_LIMIT if last is None else last):
        for row in cast("list[dict[str, object]]", batch.slice(0, limit - shown).to_pylist()):
            row["kind"] = names.get(cast("int", row["kind"]), str(row["kind"]))
            shown += 1
            if json:
                write_json(row, indent=False)
            else:
                body = cast("bytes | None", row["body"]) or b""
                cut = body[:60].decode("utf-8", "replace") + ("..." if len(body) > 60 else "")
                table.append((row["lsn"], row["kind"], row["name"], row["route"], row["time"], len(body), cut))
        if shown >= limit:
            break
    if not json:
        write_table(("lsn", "kind", "name", "route", "time", "bytes", "body"), table)


@app.command()
def verify(data: DataFolder = "./data", json: Json = False) -> None:
    """Read the whole log and compare every checksum.  Exit status 4 when bytes in the middle are wrong.

    Example: penstock log verify --data ./data
    """
    from penstock.cli.logfiles import open_folder
    from penstock.log.verify import verify as verify_log

    report = verify_log(open_folder(data))
    if json:
        facts = asdict(report)
        facts["segments"] = [segment._asdict() for segment in report.segments]
        write_json({"good": report.good, **facts})
    else:
        write(
            f"{len(report.segments):,} segments, {report.batches:,} batches, {report.rows:,} records, "
            f"{format_size(report.bytes)}, last LSN {report.last_lsn:,}"
        )
        for warning in report.warnings:
            note(f"warning: {warning}")
    if not report.good:
        raise LogDamaged("\n".join(report.damage))
    if not json:
        write("every checksum is right")


def add_audit_to(app: typer.Typer) -> None:
    """Put `audit` into the tree."""
    app.command()(audit)


def audit(data: DataFolder = "./data", json: Json = False) -> None:
    """Prove from the log that each guarantee held.  Exit status 1, with the LSNs, where one did not.

    Example: penstock audit --data ./data --json
    """
    from penstock.cli.auditing import audit as run

    report = run(data)
    if json:
        findings = [{"guarantee": one.guarantee, "lsns": one.lsns, "text": one.text} for one in report.findings]
        write_json({"counts": report.counts, "findings": findings})
    else:
        write_table(("what", "count"), list(report.counts.items()))
        for one in report.findings:
            write(f"{one.guarantee}: {one.text} (LSN {', '.join(map(str, one.lsns[:20]))})")
        if not report.findings:
            write("every guarantee held")
    if report.findings:
        raise typer.Exit(1)
