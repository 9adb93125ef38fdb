"""What commands are made of: the root of the tree, the server that they talk to, and what they print: tables for a
person, JSON for a program, errors with their exit status.

Times and durations are here as a person types them, and as he reads them.

Results go to standard output, everything else to standard error.  Rich is loaded when a table is printed, or a
bar is drawn for a person who waits.
"""

from __future__ import annotations

import inspect
import os
import sys
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

import orjson
import typer

from penstock.errors import ExpressionError, InvalidArgument, NotFound, PenstockError, printable
from penstock.units import as_text, parse_duration

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.client import Client

Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON for a program, one document, instead of text for a person.")
]
JsonLines: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON for a program, a line for each, instead of text for a person.")
]
"""Of commands that print messages or records, of which there may be too many for one document, or none."""
Url: TypeAlias = Annotated[
    str,
    typer.Option("--url", envvar="PENSTOCK_URL", help="The server: penstock://user:password@host:port/vhost."),
]

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

DEFAULT_URL = "penstock://localhost:8815"

UNFOLDED = 10_000
"""Columns of what is no terminal."""

GAP = 3
"""Columns between two of a table."""

CUT_LEAST = 8
"""Columns that a shortened column keeps."""

_OPTIONS = orjson.OPT_NON_STR_KEYS


root = typer.Typer()
"""Where every file puts its commands and families when it is loaded."""


def family(name: str, help: str) -> typer.Typer:
    """A family of commands, at the root."""
    made = typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)
    root.add_typer(made, name=name)
    return made


P = ParamSpec("P")
F = TypeVar("F", bound="Callable[..., object]")

Shown: TypeAlias = "str | tuple[str, ...] | Callable[[Any], object] | None"

Told: TypeAlias = tuple[object, Shown] | tuple[object, Shown, Exception | None] | None
"""What a command has done: facts for a program, for a person a line, columns of a table of them, or what shows them;
None where nothing is left to tell him, or nobody.  Behind these, if it is there, how the command ends then.
"""

A = TypeVar("A", bound="Callable[..., Told]")


def telling(app: typer.Typer, name: str | None = None) -> Callable[[A], A]:
    """A command whose function returns what is told.

    Its options are those of the function, and `--json`, which the function takes where it wants to know.
    """

    def register(work: A) -> A:
        asked = dict(inspect.signature(work, eval_str=True).parameters)
        wants_it = asked.pop("json", None) is not None

        def run(*args: Any, json: bool, **options: Any) -> None:
            tell(work(*args, **options, **({"json": json} if wants_it else {})), as_json=json)

        app.command(name)(_with_options(run, work, [*asked.values(), _JSON]))
        return work

    return register


def tell(told: Told, *, as_json: bool) -> None:
    """What was done: JSON for a program, else for a person."""
    if told is None:
        return
    facts, shown, *ends = told
    if as_json:
        write_json(facts)
    elif isinstance(shown, str):
        write(shown)
    elif callable(shown):
        shown(facts)
    elif shown is not None:
        write_list(cast("Sequence[Mapping[str, object]]", facts), shown)
    for error in filter(None, ends):
        raise error


def served(app: typer.Typer, name: str | None = None) -> Callable[[Callable[Concatenate[Client, P], Told]], object]:
    """The same of a command that asks a server, whose function gets the client first; one of its options is `--url`.

    The server is called when it is first asked for something: wrong usage is told without one.
    """

    def register(work: Callable[Concatenate[Client, P], Told]) -> object:
        def run(*args: Any, url: str, **options: Any) -> Told:
            with closing(_Dialled(url)) as client:
                return work(cast("Client", client), *args, **options)

        work.__annotations__ = {name: one for name, one in work.__annotations__.items() if name != "client"}
        asked = list(inspect.signature(work, eval_str=True).parameters.values())[1:]
        telling(app, name)(_with_options(run, work, [*asked, _URL]))
        return work

    return register


def _with_options(run: F, work: Callable[..., object], options: Sequence[inspect.Parameter]) -> F:
    """A function that has the name and the words of another one, and these parameters."""
    run.__name__, run.__doc__ = work.__name__, work.__doc__
    run.__annotations__ = {one.name: one.annotation for one in options}
    vars(run)["__signature__"] = inspect.Signature(options)
    return run


_URL = inspect.Parameter("url", inspect.Parameter.KEYWORD_ONLY, default=DEFAULT_URL, annotation=Url)
_JSON = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)


class _Dialled:
    """A client that connects when it is first asked for something."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Client | None = None

    def __getattr__(self, name: str) -> Any:
        if self._client is None:
            self._client = connect(self._url)
        return getattr(self._client, name)

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._client is not None:
            self._client.close()


def connect(url: str) -> Client:
    """A connection to a running server, which closes itself.  Raises Unavailable when no server answers."""
    from penstock.client import connect as dial  # not loaded by commands that need no server

    return dial(url)


def asked(url: str, action: str, **fields: object) -> dict[str, Any]:
    """The answer of an action that may take long.  Raises Unavailable within seconds when no server answers."""
    from penstock.client import connect as dial

    dial(url).close()
    with dial(url, timeout=None) as client:
        return client.action(action, with_vhost=False, **fields)


def write(text: str) -> None:
    """One line on standard output; what is no character in it, as in an argument, is the byte that it was."""
    try:
        sys.stdout.write(text + "\n")
    except UnicodeEncodeError:
        write_bytes(text.encode("utf-8", "surrogateescape"))


def write_bytes(line: bytes) -> None:
    """One line of bytes on standard output, as they are: they need not be text."""
    sys.stdout.flush()  # text that was written earlier goes first
    sys.stdout.buffer.write(line + b"\n")


def note(text: str) -> None:
    """One line on standard error: progress, warnings, hints."""
    sys.stderr.write(text + "\n")


def counted(count: int, noun: str) -> str:
    """A number with its noun: `1 file`, `2 files`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}s"


def ago(seconds: float) -> str:
    """Seconds as a person says them: one unit, rounded down."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:.0f} s"


def write_json(value: object, *, indent: bool = True) -> None:
    """A value as JSON.  Bytes are text; a row's field of bytes that is no UTF-8 stands in `FIELD_base64` instead."""
    options = _OPTIONS | (orjson.OPT_INDENT_2 if indent else 0)
    if isinstance(value, Mapping):
        value = dict(spelled(name, one) for name, one in cast("Mapping[str, object]", value).items())
    write(json_text(value, options))


def json_text(value: object, options: int = 0) -> str:
    """A value as JSON; what is no character in a text, as the bytes of an argument may have it, is escaped."""
    try:
        return orjson.dumps(value, option=options, default=_plain).decode()
    except TypeError:
        from json import dumps  # for this alone

        return dumps(value, default=_plain, indent=2 if options & orjson.OPT_INDENT_2 else None)


def spelled(name: str, value: object) -> tuple[str, object]:
    """A field of a row and its value as JSON has them: what is no text in base64, under a name that says so."""
    if not isinstance(value, bytes):
        return name, value
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", b64encode(value).decode()


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return as_text(value)


def in_order(found: Iterable[Mapping[str, object]], *columns: str) -> list[Mapping[str, object]]:
    """A list by these columns: a server tells what it has in the order in which it was made."""
    return sorted(found, key=lambda one: [str(one[column]) for column in columns])


def named(found: Iterable[Mapping[str, Any]], kind: str, name: str, key: str = "name") -> Mapping[str, Any]:
    """The one of a list that has this name.  NotFound."""
    for one in found:
        if one[key] == name:
            return one
    raise NotFound(f"no {kind} '{name}'")


def write_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str | None = None,
    to_stderr: bool = False,
    whole: Sequence[str] = (),
    cut_last: bool = False,
) -> None:
    """A table for a person.  Cells are text, never markup.

    A terminal's width folds what is wider; into a file or a pipe a row is one line, however long.  whole: columns that
    are not folded.  cut_last: the last column is shortened to what a terminal leaves for it.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = console_of(to_stderr=to_stderr)
    texts = [[shown(cell) for cell in row] for row in rows]
    if cut_last:
        _shorten(columns, texts, console.width)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for at, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[at], (int, float)) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=column in whole)
    for row in texts:
        table.add_row(*map(Text, row))
    console.print(table)


def console_of(*, to_stderr: bool = False) -> Console:
    """Where tables are printed: as wide as the terminal, and never folded into a file or a pipe."""
    from rich.console import Console

    console = Console(highlight=False, stderr=to_stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNFOLDED
    return console


def write_list(found: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Things of one kind: these columns of a table."""
    write_table(columns, [[one.get(column) for column in columns] for one in found])


def _shorten(columns: Sequence[str], texts: Sequence[list[str]], width: int) -> None:
    """Have the last column end where the terminal does: what is longer loses its end to three dots."""
    widest = [max(map(len, (column, *(row[at] for row in texts)))) for at, column in enumerate(columns[:-1])]
    left = max(width - sum(widest) - GAP * len(columns), CUT_LEAST)
    for row in texts:
        if len(row[-1]) > left:
            row[-1] = row[-1][: left - 3] + "..."


def write_facts(facts: Mapping[str, object]) -> None:
    """Names and values, one a line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        write(f"{name:<{width}}  {shown(value)}".rstrip())


def shown(value: object) -> str:
    """A value in a table: nothing for None, `yes` or `no`, lists and tables with commas, no control characters."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{shown(name)} {shown(one)}" for name, one in cast("Mapping[object, object]", value).items())
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, cast("Sequence[object]", value)))
    return printable(as_text(value))


def make_sure(question: str, yes: bool, *, status: int = 0) -> None:
    """Go on with what takes something away, or end the command with this status.

    InvalidArgument where nobody is there to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        error = InvalidArgument(f"{question}  Nobody is there to ask: say --yes")
        error.to_do = "Say --yes, or call it where somebody can answer."
        raise error
    if not typer.confirm(question):
        raise typer.Exit(status)


def tell_error(error: PenstockError, *, as_json: bool) -> int:
    """Print an error to standard error; returns the exit status of its kind."""
    if as_json:
        what: dict[str, object] = {
            "code": error.code,
            "message": str(error),
            "retry": error.retry,
            "to_do": error.to_do,
        }
        if isinstance(error, ExpressionError):
            what |= {"expression": error.text, "place": error.place}
        sys.stderr.write(json_text({"error": what}) + "\n")
    else:
        text = error.pointed() if isinstance(error, ExpressionError) else str(error)
        sys.stderr.write(f"penstock: {text}\n  {error.code}. {error.to_do}\n")
    return error.exit_status


Progress = Callable[[int, int], None]
"""(done, in all)."""


@contextmanager
def bar(what: str, progress: Progress | None = None) -> Generator[Progress]:
    """A function that moves a bar; `progress` instead, if given."""
    if progress is not None or not sys.stderr.isatty():
        yield progress or nobody
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=None)

        def show(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total)

        yield show


def nobody(done: int, total: int) -> None:
    """A progress that shows nothing."""


def when_of(text: str, what: str) -> datetime | str:
    """A duration as it is, anything else as a time; without a zone it is UTC.  InvalidArgument names `what` it is."""
    try:
        parse_duration(text)
    except ValueError:
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            raise InvalidArgument(
                f"{what} {text!r} is neither a duration such as 10m nor a time such as 2026-12-01T08:00:00Z"
            ) from None
    return text


def until_or_for(text: str) -> str:
    """A duration or a time, with the word that goes before it."""
    return f"for {text}" if isinstance(when_of(text, "it"), str) else f"until {text}"


def moment(seconds: float) -> str:
    """Seconds since the epoch, for people."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s after 1970"
