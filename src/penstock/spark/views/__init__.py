"""Views on Spark: heavy aggregates over the changes of a queue, kept as a topic with a key."""
