"""What Spark looks for at the first `format("penstock")`: it imports every top-level module named `pyspark_*`.

It does so in each fresh Python process, so this module loads nothing heavy.
"""

from penstock.spark.source import DefaultSource

__all__ = ["DefaultSource"]
