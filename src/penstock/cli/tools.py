"""`expr`, `doctor` and `tls make`: the expression language by hand, what is wrong with this machine, and certificates
to develop with.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from penstock.cli.output import JsonLines, Told, family, note, root, telling, write, write_json, write_table
from penstock.cli.serving import ConfigFile, Data, read_settings
from penstock.errors import InvalidArgument, shown, told_as

if TYPE_CHECKING:
    from penstock.cli.checkup import Finding

_SIGNED = re.compile(r"-(?:[^A-Za-z-]|\w+\s*\()")
"""What begins so is an expression and no option: `-5 % 3`, `-/a`, `-ABS(/a)`."""


class ExpressionFirst(TyperCommand):
    """A command whose argument may begin with a minus sign without `--` before it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with_value = {name for one in self.get_params(ctx) if not getattr(one, "is_flag", True) for name in one.opts}
        for at, word in enumerate(args):
            if word == "--":
                break
            if _SIGNED.match(word) and (at == 0 or args[at - 1] not in with_value):
                args = [*args[:at], *args[at + 1 :], "--", word]
                break
        return super().parse_args(ctx, args)


@root.command(cls=ExpressionFirst)
def expr(
    expression: Annotated[str, typer.Argument(help="The expression.")],
    message: Annotated[
        list[str] | None, typer.Option("--message", "-m", help="A JSON body; - reads one a line from stdin.")
    ] = None,
    backend: Annotated[str, typer.Option("--backend", help="Who evaluates: python, arrow or spark.")] = "python",
    topic: Annotated[str | None, typer.Option("--topic", help="Where they were published: K, or E/K.")] = None,
    json: JsonLines = False,
) -> None:
    """Evaluate an expression: prints the value, TRUE, FALSE or NULL, a line for each message.

    Example: penstock expr "/total > 5 AND /region IN ('n', 's')" --message '{"total": 9, "region": "n"}'
    """
    from penstock.records.entries import Topic
    from penstock.testing.expressions import evaluate

    bodies = list(_bodies(message, expression)) if message else [b"{}"]
    exchange, slash, key = (topic or "").partition("/")
    where = Topic("/", exchange, key) if slash and exchange else Topic("/", "", topic or "")
    values = evaluate(expression, bodies, backend, topics=None if topic is None else where)
    for value in values:
        if json:
            write_json({"expression": expression, "value": as_json(value)}, indent=False)
        else:
            write(as_text(value))


def _bodies(messages: Sequence[str], expression: str) -> Iterator[bytes]:
    """What was given as bodies, `-` as the lines of standard input.

    InvalidArgument for one that is not of the type that the expression reads: it would find no fields in it.
    """
    from penstock.expr import compile_value
    from penstock.expr.bodies import body_type
    from penstock.expr.context import EVERYTHING
    from penstock.records.message_types import FIELDLESS
    from penstock.records.properties import EMPTY

    asked = compile_value(expression, EVERYTHING)
    kind = body_type(asked.message_type)
    looked_into = "body" in asked.needs and kind.name not in FIELDLESS

    def checked(body: bytes, what: str) -> bytes:
        if looked_into:
            with told_as(InvalidArgument, f"{what} is no {kind.title}: "):
                kind.read(kind.one_whole(body, EMPTY))
        return body

    for text in messages:
        if text != "-":
            yield checked(text.encode("utf-8", "surrogateescape"), f"--message {shown(text)}")
            continue
        for number, line in enumerate(sys.stdin.buffer, 1):
            if body := line.strip():
                yield checked(body, f"line {number} of standard input, {shown(body.decode('utf-8', 'replace'))},")


def as_text(value: object) -> str:
    """A value as the language writes it; what is no UTF-8 in a text is replaced."""
    if value is None:
        return "NULL"
    if value != value:
        return "NAN"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return str(value if isinstance(value, float) else as_json(value))


def as_json(value: object) -> object:
    """A value that JSON can hold: NaN and the infinities by their names, what is no UTF-8 in a text replaced."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if isinstance(value, str) else value


@telling(root)
def doctor(config: ConfigFile = None, data: Data = None) -> Told:
    """Say what is wrong with this machine, and which settings are in force.  Exit status 1 if it cannot serve.

    Example: penstock doctor penstock.toml
    """
    from penstock.cli.checkup import examine
    from penstock.cli.clusters import examine_cluster
    from penstock.config.load import in_force

    settings = read_settings(config, {"server.data": data})
    findings = [*examine(settings), *examine_cluster(settings)]
    rows = in_force(settings)
    facts = {
        "findings": [finding._asdict() for finding in findings],
        "settings": {name: {"value": value, "from": origin} for name, value, origin in rows},
    }
    bad = any(finding.verdict == "bad" for finding in findings)
    return facts, lambda _: _show_findings(findings, rows), typer.Exit(1) if bad else None


def _show_findings(findings: Sequence[Finding], in_force: Sequence[tuple[str, str, str]]) -> None:
    write_table(("", "what", "found"), [(finding.verdict, finding.name, finding.found) for finding in findings])
    for finding in findings:
        if finding.advice:
            note(f"{finding.name}: {finding.advice}")
    write_table(("setting", "value", "from"), in_force)


tls = family("tls", "Certificates to develop with.")

Folder = Annotated[Path, typer.Argument(help="Where the files go; none that is there is overwritten.")]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", help="A name or address of the server; may be given several times.")
]
Clients = Annotated[
    list[str] | None, typer.Option("--client", help="A client's certificate too, with this common name; several times.")
]
Days = Annotated[int, typer.Option("--days", min=1, max=3650, help="How long they are good.")]

LOCAL = ("localhost", "127.0.0.1", "::1")


@tls.callback()
def _family() -> None:
    """Certificates to develop with."""


@telling(tls)
def make(folder: Folder, host: Hosts = None, client: Clients = None, days: Days = 365) -> Told:
    """Make a CA of your own, and a server's certificate and key signed by it; the CA's key is not kept.

    For development and tests: in production your own CA or a public one signs.

    Example: penstock tls make certificates --host localhost --host 127.0.0.1 --client shop
    """
    from penstock.server.sockets.certificates import Authority, write_new

    for name in client or []:
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name in ("ca", "server"):
            raise InvalidArgument(f"{name!r} cannot be the name of a client's files: letters, digits and -_. are good")
    authority = Authority(days=days)
    made: dict[str, tuple[bytes, bytes]] = {"server": authority.server(host or LOCAL, days)}
    made |= {name: authority.client(name, days) for name in client or []}
    _make_folder(folder, ("ca", *made))
    write_new(folder / "ca.pem", authority.pem)
    for name, (certificate, key) in made.items():
        write_new(folder / f"{name}.pem", certificate)
        write_new(folder / f"{name}.key", key, secret=True)

    def show(facts: object) -> None:
        write(_settings_of(folder, with_clients=bool(client)))
        note(f"clients trust it with ca = {folder / 'ca.pem'}; good for {days} days, for development")

    return {"folder": str(folder), "ca": "ca.pem", "made": list(made), "days": days}, show


def _make_folder(folder: Path, names: Sequence[str]) -> None:
    """InvalidArgument where it cannot be made, or has files of one of these names."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be made: {error.strerror}") from error
    there = [name for name in names for end in ("pem", "key") if (folder / f"{name}.{end}").exists()]
    if there:
        raise InvalidArgument(f"{folder} has files of {', '.join(dict.fromkeys(there))} already: none is overwritten")


def _settings_of(folder: Path, *, with_clients: bool) -> str:
    """The lines of a settings file that name what was made."""
    lines = ["[listen]", 'amqps = "127.0.0.1:5671"', "", "[tls]"]
    files = {"certificate": "server.pem", "key": "server.key", **({"ca": "ca.pem"} if with_clients else {})}
    lines += [f"{key} = {dumps(str(folder / name))}" for key, name in files.items()]
    return "\n".join([*lines, 'verify = "peer"'] if with_clients else lines)
