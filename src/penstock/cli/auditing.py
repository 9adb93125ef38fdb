"""`penstock audit`: the whole log read once, by the audit and by the fold, which must agree.

Works on the files, without a lock and without changing a byte, so also beside a running server.  A log whose oldest
segments are gone is audited from its newest base on.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.cli.progress import Progress, bar
from penstock.core.audit.verdict import Report
from penstock.history.alone import stand_alone
from penstock.server.bulk.checks import audit_view

if TYPE_CHECKING:
    from penstock.history.view import View


def evidence(data: str, archive: str | None = None) -> View:
    """A data folder's log, and its archive where both together go back to the beginning."""
    from penstock.cli.logfiles import archive_of, open_folder

    disk, found = open_folder(data), archive_of(data, archive)
    view = stand_alone(disk, found)
    if found is None or view.complete:
        return view
    view.close()
    return stand_alone(disk)


def audit(data: str | os.PathLike[str], progress: Progress | None = None, archive: str | None = None) -> Report:
    """Counts and findings of a data folder's log.

    InvalidArgument for a folder that is none, LogDamaged where bytes are not what was written.  Without `progress` a
    bar is drawn when a person looks on.
    """
    view = evidence(data if isinstance(data, str) else os.fspath(data), archive)
    try:
        with bar("records", progress) as show:
            return audit_view(view, show)
    finally:
        view.close()
