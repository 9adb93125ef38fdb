"""The bulk child: a process of its own for whatever reads much of the log, so that no reader stops the loop."""

from collections.abc import Mapping

RESTORE_PART = "restore.part"
"""In a data folder: a restore is under way, or was cut short.  No server starts beside it."""

BACKUP = "backup.json"
"""In a folder: it is a backup, which nobody writes to: it would be no copy of anything any more."""

BACKUP_PART = "backup.part"
"""In a folder: a backup is on its way there, or was cut short.  What it has is the beginning of a log, and no log."""

NO_DATA_FOLDER: Mapping[str, str] = {
    RESTORE_PART: "holds an unfinished restore: empty it and restore again",
    BACKUP: "is a backup, which never changes: penstock restore makes a data folder of it",
    BACKUP_PART: "holds an unfinished backup: remove it, and restore one that is complete",
}
"""Why nobody serves a folder that has one of these, or writes to its log."""
