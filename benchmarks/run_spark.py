"""`make bench-spark`: the benchmarks of the Spark side, one table, and `benchmarks/results/spark_*.jsonl`.

python benchmarks/run_spark.py [--quick] [--only NAME] [--out FOLDER]
"""

from __future__ import annotations

import sys

from run import HERE, main


def names() -> list[str]:
    """Every benchmark with Spark."""
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_spark_*.py"))


if __name__ == "__main__":
    sys.exit(main(names))
