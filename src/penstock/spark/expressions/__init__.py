"""The expression language as a Spark column."""
