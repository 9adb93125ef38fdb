"""Which tables and columns a SELECT names, read from DuckDB's own tree of it, and which read gives a table's rows.

A column that is asked for in vain costs time and changes nothing, so where a name could mean a column it counts as one.

    queue.q     what waits in a queue or is leased from it: column `state` says which
    view.v      the rows of a view or of a conflated topic now
    sow.t       the records of a topic with keys now
    topic.t     every message of a topic that the log still has, settled or not

A name alone is the first of these that there is.  A topic of an exchange of its own is `exchange/key`, in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import orjson

from penstock.errors import InvalidArgument, NotFound, known_name
from penstock.records.dataclass import dataclass
from penstock.records.message_types import JSON as JSON_BODIES
from penstock.records.message_types import MessageType, needed_of
from penstock.wire.flight.commands import MESSAGES, RECORDS, TEXT_COLUMNS, QueueContent, Replay, Sow
from penstock.wire.flight.tickets import STATES

if TYPE_CHECKING:
    from penstock.server.engine import Engine


Node = Mapping[str, Any]
"""An object of DuckDB's tree."""

STATEMENT_MAX = 100_000
"""Characters of a statement."""

WORDS_MOST = 16 << 20
"""Bytes of what a server and a process of statements tell each other beside rows."""

TABLES_MAX = 32
"""Tables of a statement."""

COMPLETE = b"k"
"""What follows a table's stream when it is whole: to Arrow one that was cut off between two batches is complete."""

SCHEMAS = ("queue", "topic", "sow", "view")
"""What may stand before the name of a table."""

TEXT, JSON = "text", "json"
MADE = (TEXT, JSON)
"""Columns that every table has by name: the body as text, and as JSON; NULL where it is not."""

PROPERTIES = "@properties"
"""The column that is a struct of what a message says of itself beside its headers, as expressions call it."""

SPECIAL = ('"tables"', '"databases"', "__show_tables_expanded")


@dataclass(frozen=True, slots=True)
class Use:
    """A table of the statement.  `schema` is empty where the statement gives none."""

    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Statement:
    """What a SELECT reads.  `columns`: lower-case names that may be columns; `whole`: all of a table are wanted too.

    functions, table_functions, defined: lower-case names of what it calls, and of the tables that its WITH makes.
    """

    uses: tuple[Use, ...]
    columns: frozenset[str] = frozenset()
    whole: bool = False
    lists_tables: bool = False
    functions: frozenset[str] = frozenset()
    table_functions: frozenset[str] = frozenset()
    defined: frozenset[str] = frozenset()

    def plain(self) -> dict[str, object]:
        """What the server has to know of it, as JSON holds it."""
        return {
            "uses": [[use.schema, use.name] for use in self.uses],
            "columns": sorted(self.columns),
            "whole": self.whole,
            "lists_tables": self.lists_tables,
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Statement:
        """The inverse, without what only the child judges."""
        uses = tuple(Use(*one) for one in plain["uses"])
        return cls(uses, frozenset(plain["columns"]), plain["whole"], plain["lists_tables"])


def examine(connection: Any, sql: str) -> Statement:
    """What a statement reads and calls.  InvalidArgument with DuckDB's own words, or for what is no single SELECT."""
    if len(sql) > STATEMENT_MAX:
        raise InvalidArgument(f"the statement has {len(sql)} characters, and {STATEMENT_MAX} are allowed")
    if not sql.strip().strip(";"):
        raise InvalidArgument("the statement is empty: give a SELECT")
    [[text]] = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    try:
        tree = cast("dict[str, Any]", orjson.loads(text))
    except orjson.JSONDecodeError:
        raise InvalidArgument("the statement is nested too deep") from None
    if tree["error"]:
        raise InvalidArgument(_refused(str(tree.get("error_message") or "it cannot be read"), tree))
    if len(tree["statements"]) != 1:
        raise InvalidArgument(f"{len(tree['statements'])} statements were given: one SELECT at a time")
    return _statement(tree["statements"][0])


_ADVICE = re.compile(r"(?:\.? Use [\"'`]?SET\b|, or SET\b)[^\n]*?(?=\.(?:\s|$)|\n|$)")


def without_advice(message: str) -> str:
    """DuckDB's words without what it would have its settings be, which no statement changes."""
    return _ADVICE.sub("", message)


def _refused(message: str, tree: Mapping[str, Any]) -> str:
    if "Only SELECT" in message:
        return "only SELECT is possible: a query looks and changes nothing"
    place = tree.get("position")
    return f"the statement cannot be read: {without_advice(message)}" + (f" (at character {place})" if place else "")


class _Reading:
    """What the nodes of one statement say."""

    def __init__(self) -> None:
        self.places = dict[tuple[str, str], None]()  # schema and name of tables
        self.names, self.last, self.aliases, self.defined = set[str](), set[str](), set[str](), set[str]()
        self.functions, self.table_functions = set[str](), set[str]()
        self.all_columns = self.lists = False

    def table(self, node: Node) -> None:
        if node.get("catalog_name"):
            raise InvalidArgument(
                f"{node['catalog_name']}.{node['schema_name']}.{node['table_name']}: a table is a name, or one of "
                "queue.name, topic.name, sow.name and view.name"
            )
        self.places[str(node["schema_name"]), str(node["table_name"])] = None
        self.aliases |= {str(node["table_name"]).lower(), str(node.get("alias") or "").lower()}

    def show(self, node: Node) -> None:
        if str(node.get("table_name")) in SPECIAL:
            self.lists = True
        elif node.get("query") is None:
            self.places["", str(node["table_name"]).strip('"')] = None
        self.all_columns = True

    def table_function(self, node: Node) -> None:
        self.table_functions.add(str(node["function"]["function_name"]).lower())

    def column(self, node: Node) -> None:
        parts = [str(part).lower() for part in node["column_names"]]
        self.names.update(parts)
        self.last.add(parts[-1])

    def star(self, node: Node) -> None:
        self.all_columns = True

    def join(self, node: Node) -> None:
        self.names |= {str(one).lower() for one in node.get("using_columns") or ()}
        self.all_columns = self.all_columns or "NATURAL" in str(node.get("ref_type"))

    def recursive(self, node: Node) -> None:
        self.defined.add(str(node.get("cte_name")).lower())

    def any(self, node: Node) -> None:
        """What nodes of every kind may have."""
        if node.get("type") != "TABLE_FUNCTION" and node.get("function_name"):
            self.functions.add(str(node["function_name"]).lower())
        for one in cast("dict[str, Any]", node.get("cte_map") or {}).get("map") or ():
            self.defined.add(str(one["key"]).lower())


_BY_KIND: Mapping[str, Callable[[_Reading, Node], None]] = {
    "BASE_TABLE": _Reading.table,
    "SHOW_REF": _Reading.show,
    "TABLE_FUNCTION": _Reading.table_function,
    "COLUMN_REF": _Reading.column,
    "STAR": _Reading.star,
    "JOIN": _Reading.join,
    "RECURSIVE_CTE_NODE": _Reading.recursive,
}


def _statement(tree: Node) -> Statement:
    read = _Reading()
    for node in _nodes(tree):
        kind = node.get("type")
        if isinstance(kind, str) and (note := _BY_KIND.get(kind)) is not None:
            note(read, node)
        read.any(node)
    # Whole rows by the name of their table: `SELECT t FROM orders t`, wherever the tree has it.
    all_columns = read.all_columns or bool(read.last & (read.aliases - {""}))
    uses = [Use(schema, name) for schema, name in read.places if schema or name.lower() not in read.defined]
    if len(uses) > TABLES_MAX:
        raise InvalidArgument(f"the statement names {len(uses)} tables, and {TABLES_MAX} are allowed")
    return Statement(
        tuple(uses), frozenset(read.names), all_columns, read.lists,
        frozenset(read.functions), frozenset(read.table_functions), frozenset(read.defined),
    )  # fmt: skip


def _nodes(value: object) -> Iterator[Node]:
    """Every object of the tree, the outer before the inner."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            node = cast("dict[str, Any]", one)
            yield node
            waiting.extend(reversed(list(node.values())))
        elif isinstance(one, list):
            waiting.extend(reversed(cast("list[object]", one)))


TABLES = frozenset({
    "range", "generate_series", "repeat", "repeat_row", "unnest", "json_each", "json_tree", "summary",
    "regexp_split_to_table", "generate_subscripts", "test_all_types", "test_vector_types", "pg_timezone_names",
    "icu_calendar_names",
})  # fmt: skip
"""Functions that may stand where a table does."""

COMPUTE = frozenset({
    "random", "setseed", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "error", "now", "today", "current_date",
    "current_localtime", "current_localtimestamp", "get_current_time", "get_current_timestamp",
    "transaction_timestamp", "stats", "vector_type",
})  # fmt: skip
"""Scalar functions whose value may be another one at the next call, and which tell nothing of the machine."""

OTHERS = frozenset(
    {
        "json_serialize_plan",  # it computes what it can, and the text that it is given is not looked at
        "pg_sleep",  # only waits, for as long as others would wait for its place
        "getenv",  # DuckDB has it where it runs as a program
    }
)
"""Scalar functions that are refused although DuckDB does not say that their values change."""


class Allowed:
    """The judge of names, who asks DuckDB once: that takes 30 ms."""

    def __init__(self) -> None:
        self._refused: frozenset[str] = frozenset()
        self._known: frozenset[str] = frozenset()
        self._taken: frozenset[str] = frozenset()

    def judge(self, connection: Any, statement: Statement) -> None:
        """InvalidArgument for a function that is out of reach, or a name that hides a view of DuckDB's own."""
        if not self._refused:
            rows = connection.execute(
                "SELECT lower(function_name), bool_and(stability <> 'CONSISTENT') FROM duckdb_functions() GROUP BY 1"
            ).fetchall()
            self._known = frozenset(name for name, _ in rows)
            # Some that compute have a form for times with a zone, which asks for that of the session: `year`, `+`.
            self._refused = frozenset(name for name, changing in rows if changing) - COMPUTE | OTHERS
            rows = connection.execute("SELECT DISTINCT lower(view_name) FROM duckdb_views() WHERE internal").fetchall()
            self._taken = frozenset(name for (name,) in rows)
        for name in sorted(statement.table_functions - TABLES - self._known):
            raise InvalidArgument(f"FROM {name}(): no function of this name makes a table; queues stand by name alone")
        for name in sorted(statement.table_functions - TABLES) + sorted(statement.functions & self._refused):
            raise InvalidArgument(
                f"{name}() is disabled by configuration: it may tell of the machine, its files or its settings"
            )
        for name in sorted(statement.defined & self._taken):
            # Outside of its WITH the same name would be DuckDB's, and no table that anybody may read.
            raise InvalidArgument(f"WITH {name}: DuckDB has a view of this name, choose another one")


QUEUE = ("lsn", "time", "state", "attempt", "body")
TOPIC = ("lsn", "topic", "time", "body")
SOW = ("lsn", "time", "body")
VIEW = ("body",)
"""Columns of `SELECT *`, before the fields of the bodies; the bodies themselves are left out where they have fields."""

ENCODED = "properties"
"""The column of what messages say of themselves, in our own encoding: some bodies are read by it, too."""

UNSHOWN = frozenset({ENCODED, *TEXT_COLUMNS})
"""Columns that are none in SQL: that one, and those whose names stand for fields of bodies."""


@dataclass(frozen=True, slots=True)
class Found:
    """The read of a table.  `sure` is False for a name that may be nothing at all: rows alone tell."""

    use: Use
    read: QueueContent | Replay | Sow
    sure: bool = True
    message_type: MessageType = JSON_BODIES  # of its bodies


def find(engine: Engine, vhost: str, use: Use, statement: Statement) -> Found | None:
    """The read of a name, None where it is nothing; on the loop.  InvalidArgument."""
    schema, name = use.schema.lower(), use.name
    if schema and schema not in SCHEMAS:
        raise InvalidArgument(f"{use.schema}.{name}: before the dot stands one of {', '.join(SCHEMAS)}")
    core = engine.core
    exchange, key = core.topology.place_of(vhost, name)
    if schema in ("", "queue") and (queue := core.find_queue(vhost, name)) is not None:
        kind = queue.settings.message_type
        content = QueueContent(name, vhost, STATES, columns=columns(QUEUE, MESSAGES.names, statement, kind))
        return Found(use, content, message_type=kind)
    if schema in ("", "view") and not exchange and engine.views.shown(vhost, name) is not None:
        return Found(use, Sow(name, "", vhost, columns=columns(VIEW, RECORDS.names, statement)))
    kind = core.message_type(vhost, exchange, key)
    if schema in ("", "sow") and (vhost, exchange, key) in core.sows.by_name:
        records = Sow(key, exchange, vhost, columns=columns(SOW, RECORDS.names, statement, kind))
        return Found(use, records, message_type=kind)
    if schema in ("", "topic"):
        shown = [one for one in MESSAGES.names if one not in ("state", "attempt")]
        read = Replay(key, exchange=exchange, vhost=vhost, columns=columns(TOPIC, shown, statement, kind))
        return Found(use, read, bool(schema) or (vhost, exchange, key) in core.topology.topics, kind)
    return None


def columns(
    usual: Iterable[str], possible: Iterable[str], statement: Statement, kind: MessageType = JSON_BODIES
) -> tuple[str, ...]:
    """The columns to read: those that are named, for `*` the usual ones, and what bodies of a type are read from."""
    asked = statement.columns - {PROPERTIES}
    there = [name for name in possible if name not in UNSHOWN]
    chosen = list(usual) if statement.whole else []
    chosen += [name for name in there if name in asked and name not in chosen]
    if "body" not in chosen and (asked - set(there) or asked & set(MADE)):
        chosen.append("body")
    beside = needed_of(kind) if "body" in chosen else frozenset[str]()
    if PROPERTIES in statement.columns:
        beside |= {ENCODED}
    chosen += sorted(beside.difference(chosen))
    return tuple(chosen) or ("lsn" if "lsn" in there else there[0],)


_NO_COLUMN = re.compile(r'(?:^Referenced (?:column|table)|does not have a column named) "((?:[^"]|"")+)"')

FIELDS_TOLD = 20
"""Fields of bodies that are named where a column is none of them, each with at most `FIELD_TOLD` characters."""

FIELD_TOLD = 40


def without_column(text: str, fields: Collection[str]) -> str:
    """DuckDB's words; of a column that there is not, with the one that may have been meant, and the fields of bodies.

    The statement's tables hold the columns that it names alone, so DuckDB proposes others than may have been meant.
    """
    if (found := _NO_COLUMN.search(text)) is None:
        return text
    name = found[1].replace('""', '"').lower()
    known = {one.lower() for one in (*fields, *RECORDS.names, *MADE) if one not in UNSHOWN}
    if name not in known and (near := known_name(name, known)):
        text = text.splitlines()[0].rstrip("!") + near
    told = ", ".join(one[:FIELD_TOLD] for one in islice(fields, FIELDS_TOLD)) or "none of the bodies there has one"
    more = f" and {len(fields) - FIELDS_TOLD} more" if len(fields) > FIELDS_TOLD else ""
    return f"{text}\nFields of the bodies are columns, too: {told}{more}."


def missing(vhost: str, use: Use, there: Sequence[str]) -> NotFound:
    """The error for a name that is nothing; there: what may have been meant."""
    hint = known_name(use.name, there, "; SHOW TABLES says what there is")
    what = use.schema or "queue, view or topic"
    return NotFound(f"no {what} '{use.name}' in vhost '{vhost}'{hint}")


def names(engine: Engine, vhost: str) -> list[tuple[str, str]]:
    """Every table of a vhost: its schema and name; on the loop."""
    core = engine.core
    out = [("queue", queue.name) for queue in core.queues() if queue.vhost == vhost]
    out += [("view", one.name) for one in engine.views.all_shown() if one.vhost == vhost]
    topics = sorted(core.topology.topics)
    out += [
        ("sow" if (at, exchange, key) in core.sows.by_name else "topic", f"{exchange}/{key}" if exchange else key)
        for at, exchange, key in topics
        if at == vhost
    ]
    return out
