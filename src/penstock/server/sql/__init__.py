"""SQL over what waits and what the log holds: DuckDB in a child process, fed with Arrow by the server's own reads.

    statement -> child: which tables? -> reads, with the caller's rights -> child -> rows of the result

The child has no door, no user and no file but a folder for what does not fit into its memory.
"""

FOLDER = "sql.tmp"
"""In the data folder: what statements put aside while they run.  Nobody needs it after a stop."""
