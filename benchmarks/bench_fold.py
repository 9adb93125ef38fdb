"""How fast is the fold?  Records a second over a log of publishes and settles, for one queue and for 100 interleaved.

    PYTHONPATH=src python benchmarks/bench_fold.py [--records 5000000] [--rows 1000]

The log is built in memory as the server writes it: batches of publish rows, each followed by one settle record a queue;
a tenth of the messages stays.  Only `Fold.feed` and `finish` are timed.  Prints a line of JSON for each shape.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from harness import emit

from penstock.core.state.encoding import dump, dump_settings
from penstock.core.state.fold import Fold
from penstock.records.chunks import pack_pairs
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings
from penstock.records.schema import COLUMNS

TABLE_ROWS = 500_000


def log(records: int, rows: int, queues: int, seed: int = 1) -> Iterator[pa.Table]:
    """Tables of about `TABLE_ROWS` rows in batches of `rows`."""
    rng = np.random.default_rng(seed)
    lsn = 1
    controls = list[tuple[int, int, str, bytes, bytes, int | None]]()
    ids = list[int]()
    for i in range(queues):
        header = {"vhost": "/", "durable": True, "exclusive": False, "auto_delete": False, "arguments": {},
                  "settings": dump_settings(QueueSettings())}  # fmt: skip
        controls.append((lsn, int(Kind.QUEUE_DECLARE), f"q{i}", dump(header), b"", None))
        ids.append(lsn)
        lsn += 1
    for i, number in enumerate(ids):
        controls.append((lsn, int(Kind.ROUTE), "", b"", np.array([number], dtype="<i8").tobytes(), i))
        lsn += 1
    batches = [_batch(controls, None, None)]
    count = len(controls)
    waiting: list[list[int]] = [[] for _ in range(queues)]
    total = 0
    while count < records:
        first = lsn
        routes = rng.integers(0, queues, rows)
        lsn += rows
        body = b"x" * 100
        controls = []
        stay = rng.random(rows) < 0.1
        lsns = np.arange(first, first + rows)
        for queue in np.unique(routes).tolist() if queues > 1 else [0]:
            mine = lsns[routes == queue]
            gone = stay[routes == queue]
            breaks = np.flatnonzero(gone)
            pairs, start = list[int](), 0
            for at in [*breaks.tolist(), len(mine)]:
                if at > start:
                    pairs += (int(mine[start]), int(mine[at - 1]) + 1)
                start = at + 1
            if pairs:
                controls.append((lsn, int(Kind.SETTLE), f"q{queue}", b"", pack_pairs(ids[queue], pairs), None))
                lsn += 1
            waiting[queue].extend(())
        total += int(stay.sum())
        batches.append(_batch(controls, (first, routes.astype(np.int32)), body))
        count += rows + len(controls)
        if len(batches) * (rows + queues // 2) >= TABLE_ROWS:
            yield pa.Table.from_batches(batches)
            batches = []
    if batches:
        yield pa.Table.from_batches(batches)
    log.waiting = total  # type: ignore[attr-defined]


def _batch(controls: list[tuple[int, int, str, bytes, bytes, int | None]], rows: tuple[int, np.ndarray] | None,
           body: bytes | None) -> pa.RecordBatch:  # fmt: skip
    n = 0 if rows is None else len(rows[1])
    first = 0 if rows is None else rows[0]
    lsns = [*range(first, first + n), *(c[0] for c in controls)]
    size = len(lsns)
    columns = [
        pa.array(lsns, pa.int64()),
        pa.array([int(Kind.PUBLISH)] * n + [c[1] for c in controls], pa.int8()),
        pa.array(["key"] * n + [c[2] for c in controls], pa.string()),
        pa.nulls(size, pa.int32()),
        pa.array(([] if rows is None else rows[1].tolist()) + [c[5] for c in controls], pa.int32()),
        pa.array([1_700_000_000_000_000] * size, pa.int64()).cast(COLUMNS.field("time").type),
        pa.nulls(size, COLUMNS.field("expires_at").type),
        pa.nulls(size, COLUMNS.field("not_before").type),
        pa.nulls(size, pa.int16()),
        pa.array([b"\x10\x00\x02"] * n + [c[3] for c in controls], pa.binary()),
        pa.array([body] * n + [c[4] for c in controls], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=COLUMNS)


def main() -> None:
    """Run both shapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--rows", type=int, default=1_000)
    options = parser.parse_args()
    for queues in (1, 100):
        fold, spent, cpu = Fold(), 0.0, 0.0
        for table in log(options.records, options.rows, queues):
            start, busy = time.perf_counter(), time.process_time()
            fold.feed(table)
            spent += time.perf_counter() - start
            cpu += time.process_time() - busy
        start = time.perf_counter()
        state = fold.finish()
        spent += time.perf_counter() - start
        waiting = sum(queue.count for queue in state.queues.values())
        assert waiting == log.waiting, (waiting, log.waiting)  # type: ignore[attr-defined]
        start = time.perf_counter()
        encoded = state.encode()
        encode = time.perf_counter() - start
        settings = {
            "queues": queues, "rows_a_batch": options.rows, "records": fold.records, "seconds": round(spent, 3),
            "cpu_seconds_fed": round(cpu, 3), "waiting": waiting, "state_bytes": len(encoded),
            "encode_ms": round(encode * 1000, 1),
        }  # fmt: skip
        what = "fold: one queue" if queues == 1 else f"fold: {queues} queues interleaved"
        emit(what, [fold.records / spent], "records/s", budget=5_000_000, sense="at least", settings=settings)


if __name__ == "__main__":
    main()
