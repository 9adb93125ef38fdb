"""The bulk child: a process of its own for whatever reads much of the log, so that no reader stops the loop."""

RESTORE_PART = "restore.part"
"""In a data folder: a restore is under way, or was cut short.  No server starts beside it."""

BACKUP = "backup.json"
"""In a folder: it is a backup, which nobody writes to: it would be no copy of anything any more."""
