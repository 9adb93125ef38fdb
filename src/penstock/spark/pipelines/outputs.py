"""Several outputs of one query: a batch is visible in all of them, once.

Topics are staged by the tasks and committed together, with the input's dead letters (`letters`); a table gets one
directory a batch, written aside, synced and renamed into place; the table of a complete aggregate is a link that moves
from snapshot to snapshot.  Tables come first and the server's commit last: it alone says that a batch is done, and
everything before it may be done again: what a commit refuses is taken back, and a batch that comes again is written
anew, as its query may be another one by then.

    out/delays/penstock_batch=<query>-<batch>/part-*.parquet      append and update
    out/delays -> delays.snapshots/<query>-<batch>                complete
    out/.delays.part/                                             what is being written: readers of folder/** see none
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.errors import AccessRefused, InvalidArgument, NotFound, PenstockError, PreconditionFailed, Refused
from penstock.records.dataclass import dataclass
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.pipelines.definition import Output
from penstock.spark.pipelines.expectations import Letters, Thresholds
from penstock.spark.pipelines.lineage import Lineage
from penstock.spark.record_batches import column, in_arrow
from penstock.spark.remote import Where, remote
from penstock.spark.sink import commit, refuse_missing, stage
from penstock.spark.sink_rows import Outgoing, outgoing

SNAPSHOTS_KEPT = 2
"""The present one, and the one before it for whoever is reading it."""


class Stager:
    """Runs in tasks: rows of a frame onto the server; the names of the stages come back as rows."""

    def __init__(self, where: Where, query: str, batch: int, out: Outgoing, to: Output) -> None:
        self._task = (where, query, batch)
        self._out = out
        self._to = to

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The stages of one partition."""
        where, query, batch = self._task
        rows = batches if not self._to.key else keyed(batches, self._to)
        stages, _ = stage(where, query, batch, rows, self._out, self._to.topic, self._to.exchange, self._to.vhost)
        yield pa.record_batch({"stage": pa.array(stages, pa.string())})


def keyed(batches: Iterable[pa.RecordBatch], to: Output) -> Iterator[pa.RecordBatch]:
    """The rows of a view.  InvalidArgument for one without its key, as far as the columns show it."""
    for batch in batches:
        for path in to.key:
            name = path.lstrip("/")
            if name in batch.schema.names and column(batch, name).null_count:
                raise InvalidArgument(
                    f"{to.text}: column {name!r} of its key is NULL in a row, and a record needs its key: leave such "
                    f"rows out in the SQL, as in WHERE {name} IS NOT NULL, or put them aside by expect; a body that "
                    "does not fit the columns has NULL in all of them, and parse_error says why"
                )
        yield batch


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch that is done: what its commit told, and what the server answered."""

    batch: int
    lineage: Mapping[str, object]
    answer: Mapping[str, Any]


GENERATES = "spark.sql.codegen.wholeStage"
"""Whether Spark makes code for a query, which is compiled as it starts: an eighth of what nine small pipelines take
until they all have results.  A plan that is interpreted has the same rows, byte for byte, as a state needs them."""

INTERPRETING = {GENERATES: "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILING = {GENERATES: "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""For the steps of a plan together, and for each expression that stands alone."""

LONG_S, ALL_S = 1.0, 60.0
"""A batch that takes so long is worth the code, and so are many that together do."""


@dataclass(eq=False)
class Outputs:
    """What a query does with each of its batches: give it to `foreachBatch`."""

    where: Where
    targets: Sequence[Output]
    checkpoint: Checkpoint
    settles: Sequence[str]  # the streams of queues that it reads; their batches are settled by the commit
    complete: bool
    mandatory: bool = True  # a row for a topic that nobody keeps fails its batch
    lineage: Lineage | None = None  # what the batches are made of, as their commits tell it
    letters: Letters | None = None  # dead letters, which the tasks stage while they compute a batch
    thresholds: Thresholds | None = None  # how many rows may fail a rule before the batch does
    tasks: Where | None = None  # as whom they log in, if not as the driver
    interpreted: bool = False  # Spark makes no code for it until its batches, but for the first, take long
    warm: bool = field(default=False, init=False)  # a batch is done
    took_s: float = field(default=0.0, init=False)  # those after it, together
    files: list[Files] = field(default_factory=list["Files"], init=False)  # of the batch, written and not seen
    committed: list[Committed] = field(default_factory=list[Committed], init=False)
    """Newest last; whoever tells of them takes them out."""

    def declare(self, letters: Iterable[str] = ()) -> None:
        """Let the server keep what goes to topics that nobody has declared; views with their key.

        letters: topics of dead letters.
        Who may not declare them relies on who did: what is not kept fails the batch.
        """
        server = remote(self.where)
        for target in (*self.targets, *(Output(topic, None, vhost=server.vhost) for topic in letters)):
            if target.topic is None or (target.view and not target.key):
                continue
            if target.queue:
                if self.mandatory:
                    refuse_missing(self.where, target.topic, target.vhost or server.vhost)
                continue
            name = {"topic": target.topic, "exchange": target.exchange, "vhost": target.vhost}
            with suppress(AccessRefused):
                if not target.key:
                    server.act("declare_topic", **name)  # its settings stay as they are, if it is there
                    continue
                try:
                    server.act("topic", **name)
                except NotFound:
                    server.act("declare_topic", **name, settings={"key": list(target.key)})

    def check(self, schema: Any) -> None:
        """InvalidArgument unless topics can take rows of these columns; PreconditionFailed for a folder in the way."""
        for target in self.targets:
            if target.table is None:
                fields = outgoing(schema, target.topic, queue=target.queue).fields
                refuse_keyless(fields, target)
                continue
            if not schema.fields:
                raise InvalidArgument(f"{target.text}: there is no column to write")
            refuse_partitions(schema, target)
            names = [name.lower() for name in schema.names]  # as Spark tells columns of files apart
            for name in schema.names:
                if names.count(name.lower()) > 1:
                    raise InvalidArgument(f"{target.text}: column {name!r} is there twice: give one another name")
            if self.complete:
                refuse_folder(Path(target.table).absolute())

    def __call__(self, frame: Any, batch: int) -> None:
        """One batch, on the driver.  Spark may bring a batch again; it changes nothing then."""
        query = self.checkpoint.query_id()
        highest = remote(self.where).act("sink", query=query)["batch"]
        if highest is not None and batch < highest:
            raise PreconditionFailed(
                f"query {query} has committed batch {highest}, and Spark brings batch {batch}: an old checkpoint was "
                f"put back; delete {self.checkpoint.folder} to start anew"
            )
        if batch == highest:
            run(frame)  # the batch is out; the query's state may not be
            self.forget_letters()
            return
        several, began = len(self.targets) > 1, time.monotonic()
        if several:
            frame.persist()
        try:
            stages: list[str] = []
            self.files = []
            for target in self.targets:
                if target.table is None:
                    stages += self.staged(frame, query, batch, target)
                else:
                    self.files.append(self.written(frame, target, query, batch))
            if self.thresholds is not None:
                self.thresholds.refuse()
            self.commit(query, batch, stages)
            self._look_at_time(frame, time.monotonic() - began)
        except BaseException:
            with suppress(PenstockError):  # what ended the batch is what is told; the next commit drops them too
                self.forget_letters()
            raise
        finally:
            if several:
                frame.unpersist()

    def _look_at_time(self, frame: Any, took_s: float) -> None:
        """Whether the batches to come are worth code; the session of a frame is that of all batches of its query."""
        self.took_s += took_s if self.warm else 0.0
        if self.interpreted and self.warm and (took_s > LONG_S or self.took_s > ALL_S):
            for name, value in COMPILING.items():
                frame.sparkSession.conf.set(name, value)
            self.interpreted = False
        self.warm = True

    def staged(self, frame: Any, query: str, batch: int, target: Output) -> list[str]:
        """Rows onto the server, not visible yet."""
        stager = Stager(
            self.tasks or self.where, query, batch, outgoing(frame.schema, target.topic, queue=target.queue), target
        )
        return [str(row[0]) for row in in_arrow(frame, stager, "stage string").collect()]

    def commit(self, query: str, batch: int, stages: Sequence[str]) -> None:
        """The one step that makes the batch done."""
        if self.letters is not None:
            stages = [*stages, *self.letters.stages(batch)]
        settle = self.checkpoint.settled(batch, self.settles) if self.settles else ()
        told = None
        if self.lineage is not None:
            told = self.lineage.told(self.checkpoint, batch, [self.table_of(t, query, batch) for t in self.tables])
        answer = commit(
            self.where, query, batch, stages, settle, told, mandatory=self.mandatory, drop=self.drop(batch),
            within=partial(in_place, self.files),
        )  # fmt: skip
        for one in self.files:
            one.done()
        if self.letters is not None:
            self.letters.forget()
        if told is not None:
            self.committed = [*self.committed[-99:], Committed(batch, told, answer)]

    def forget_letters(self) -> None:
        """Remove the dead letters of a batch that is not committed, or was before."""
        if self.letters is not None:
            self.letters.discard()

    def drop(self, batch: int) -> Mapping[str, object] | None:
        """Records of a topic that go with the commit."""
        return None

    @property
    def tables(self) -> list[str]:
        """The folders among the targets."""
        return [str(Path(target.table).absolute()) for target in self.targets if target.table is not None]

    def table_of(self, folder: str, query: str, batch: int) -> str:
        """The folder that has the rows of one batch."""
        name = name_of(query, batch)
        return f"{folder}.snapshots/{name}" if self.complete else str(files_of(Path(folder), name))

    def written(self, frame: Any, to: Output, query: str, batch: int) -> Files:
        """Parquet files of this batch, on the disk and aside."""
        folder = Path(str(to.table)).absolute()
        files = Files(Path(self.table_of(str(folder), query, batch)), folder, folder if self.complete else None)
        if self.complete:
            refuse_folder(folder)
        files.write(frame, to)
        return files


def name_of(query: str, batch: int) -> str:
    """A batch in the names of folders."""
    return f"{query[:8]}-{batch:09d}"


def files_of(table: Path, name: str) -> Path:
    """The folder of a batch in a table that is not replaced as a whole."""
    return table / f"penstock_batch={name}"


def run(frame: Any) -> None:
    """Compute a frame for its effects on the query's state."""
    frame.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True, slots=True)
class Files:
    """The rows of a batch in a table: written aside, put in place whole, and taken back."""

    final: Path
    table: Path
    link: Path | None = None  # of a complete aggregate, which is to lead here

    @property
    def aside(self) -> Path:
        """Beside the table and not in it: some readers of `folder/**` look into what is hidden too."""
        return beside(self.table) / self.final.name

    @property
    def replaced(self) -> Path:
        """What an earlier try has left, on its way out."""
        return self.aside.with_name(f"{self.final.name}.old")

    def write(self, frame: Any, to: Output) -> None:
        """All of it anew, onto the disk."""
        aside, name = self.aside, self.final.name
        older = [self.final.with_name(f".{name}.{ending}") for ending in ("part", "old")]  # of former releases
        for leftover in (aside, self.replaced, *older):
            shutil.rmtree(leftover, ignore_errors=True)
        self.final.parent.mkdir(parents=True, exist_ok=True)
        write = named_apart(frame, to).write.mode("overwrite").partitionBy(*to.partition_by)
        write.parquet(f"file://{aside}")  # unquoted, as Hadoop reads it
        for path in aside.rglob("*"):
            sync(path)
        sync(aside)

    def place(self) -> Path | None:
        """Let it be seen, in place of what an earlier try has left; where the link led before."""
        if self.final.exists():
            os.rename(self.final, self.replaced)
        os.rename(self.aside, self.final)
        sync(self.final.parent)
        shutil.rmtree(self.replaced, ignore_errors=True)
        if self.link is None:
            return None
        before = self.link.resolve() if self.link.is_symlink() else None
        refuse_folder(self.link)
        point(self.link, self.final)
        return before

    def take_back(self, before: Path | None) -> None:
        """Let nobody see it.  before: where the link leads again."""
        if self.link is not None and before not in (None, self.final):
            point(self.link, Path(str(before)))
        elif self.link is not None:
            self.link.unlink(missing_ok=True)
        os.rename(self.final, self.aside)

    def done(self) -> None:
        """It is committed, and what it replaces need not stay."""
        if self.link is not None:
            forget(self.final.parent, keep=self.final.name)
        with suppress(OSError):  # another pipeline writes there too
            self.aside.parent.rmdir()


def beside(table: Path) -> Path:
    """Where what is being written to a table lies: a folder beside it, or in one that is a mount or whose parent is not
    for this user.
    """
    parent, name = table.parent, f".{table.name}.part"
    apart = os.access(parent, os.W_OK) and not (table.is_dir() and table.stat().st_dev != parent.stat().st_dev)
    return parent / name if apart or not table.is_dir() else table / name


@contextmanager
def in_place(files: Sequence[Files]) -> Generator[None]:
    """The files are seen while a commit is asked for, and again gone when it is refused."""
    placed: list[tuple[Files, Path | None]] = []
    try:
        for one in files:
            placed.append((one, one.place()))
        yield
    except (Refused, OSError):
        for one, before in placed:
            one.take_back(before)
        raise


NAMELESS = ("binary", "array", "map", "struct", "variant")
"""Types whose values name no folder."""

NULLS = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts whose folder is the one of NULL.  Spark takes the three for different ones as it writes, and fails where two of
them meet in a task, as the second file is there already."""


NAME_MOST = 255
"""Bytes of the name of a folder."""

ESCAPED = r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]"""
"""What takes three bytes in the name of a folder."""


def named_apart(frame: Any, to: Output) -> Any:
    """The frame with NULL, as whoever reads the folders finds it, for texts that are called as NULL is.

    A row whose text is no name for a folder fails with a sentence of ours.
    """
    from pyspark.sql import functions

    for name in to.partition_by:
        if frame.schema[name].dataType.typeName() == "string":
            column: Any = functions.col(f"`{name.replace('`', '``')}`")
            size = functions.octet_length(functions.regexp_replace(column, ESCAPED, "%00"))
            unfit = (size > NAME_MOST - len(f"{name}=".encode())) | column.contains("\0")
            told = functions.concat(
                functions.lit(f"{to.text}: partition_by names {name!r}, and a value of "),
                functions.octet_length(column).cast("string"),
                functions.lit(
                    f" bytes is no name for a folder, which has {NAME_MOST} bytes with {name}= at most, and no NUL"
                ),
            )
            named = functions.when(unfit, functions.raise_error(told)).otherwise(column)
            frame = frame.withColumn(name, functions.when(~column.isin(*NULLS), named))
    return frame


def refuse_folder(folder: Path) -> None:
    """A complete aggregate replaces a link, never a folder that somebody else has made."""
    if folder.exists() and not folder.is_symlink():
        raise PreconditionFailed(
            f"table {folder} is a folder and should be a link to the newest snapshot: move it away"
        )


def refuse_partitions(schema: Any, target: Output) -> None:
    """Folders are named by columns that are there and have a text of their own, and files hold at least one more."""
    names: Sequence[str] = schema.names
    for name in target.partition_by:
        if name in names and (kind := schema[name].dataType).typeName() in NAMELESS:
            raise InvalidArgument(
                f"{target.text}: partition_by names {name!r}, which is {kind.simpleString()}, and no folder is called "
                "so: cast it, or name another column"
            )
        if name not in names:
            raise InvalidArgument(
                f"{target.text}: partition_by names {name!r}, and there are the columns {', '.join(names)}"
            )
    if target.partition_by and len(target.partition_by) >= len(names):
        raise InvalidArgument(f"{target.text}: partition_by names every column, and none is left for the files")


def refuse_keyless(fields: Sequence[str], target: Output) -> None:
    """A view's rows have its key, as far as the columns show: a frame with its own bodies shows nothing."""
    for path in target.key:
        column = path.lstrip("/").partition("/")[0]
        if fields and column not in fields:
            raise InvalidArgument(f"{target.text}: its key {path} is none of the columns {', '.join(fields)}")


def point(link: Path, folder: Path) -> None:
    """Let the link lead to the folder, in one step."""
    aside = link.with_name(f".{link.name}.link")
    aside.unlink(missing_ok=True)
    aside.symlink_to(os.path.relpath(folder, link.parent))
    os.replace(aside, link)
    sync(link.parent)


def forget(snapshots: Path, keep: str) -> None:
    others = sorted((p for p in snapshots.iterdir() if p.name != keep), key=lambda path: path.stat().st_mtime)
    for path in others[: max(0, len(others) - SNAPSHOTS_KEPT + 1)]:
        shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """A file or folder onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
