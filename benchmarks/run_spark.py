"""`make bench-spark`: the benchmarks of the Spark side, one table, and `benchmarks/results/spark_*.jsonl`.

    python benchmarks/run_spark.py [--quick] [--only spark_read] [--out FOLDER] [--json]
    PENSTOCK_BENCH=short make bench-spark

What is asked of two cores stands beside each figure as its budget:

| figure | at least |
| --- | --- |
| batch read of 5 million messages, beside Spark's own Parquet reader on the same rows | 0.5 of its speed |
| typed JSON of four columns, 3 million messages, beside the same columns in Parquet | 0.6 of its speed |
| nine small pipelines on one driver, first results of all | 15 s at most |
| stream in log mode | 1,000,000 rows/s |
| stream in mode queue, with grants and settlements | 500,000 rows/s |
| sink | 700,000 rows/s |
| Flight to Spark to Flight | 500,000 rows/s |

The time of a batch of a few rows, that of a batch with `orderBy` beside one without, and of a message from end to end
at 1,000 a second (p50, p99), have none; nor has the source that yields typed batches which are there already (`floor`),
beyond whose speed no typed JSON comes.
"""

from __future__ import annotations

import sys

from run import HERE, SHORT, main

ORDER = ("spark_read", "spark_typed", "spark_stream", "spark_queue", "spark_sink", "spark_pipelines")
"""These first; then all others by name."""

SHORT |= {
    "spark_read": ["--messages", "1000000", "--repeat", "1"],
    "spark_typed": ["--messages", "1000000", "--repeat", "1"],
    "spark_pipelines": ["--repeat", "1"],
    "spark_stream": ["--messages", "1000000", "--repeat", "1"],
    "spark_queue": ["--messages", "1000000", "--repeat", "1"],
    "spark_sink": ["--messages", "500000", "--repeat", "1"],
}


def names() -> list[str]:
    """Every benchmark with Spark."""
    found = {path.stem.removeprefix("bench_") for path in HERE.glob("bench_spark_*.py")}
    return [name for name in ORDER if name in found] + sorted(found.difference(ORDER))


if __name__ == "__main__":
    sys.exit(main(names))
