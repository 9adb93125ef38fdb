"""`penstock audit`: the whole log read once, by the audit and by the fold, which must agree.

Works on the files, without a lock and without changing a byte, so also beside a running server.  A log whose oldest
segments are gone is audited from its newest base on.
"""

from __future__ import annotations

import os

from penstock.cli.progress import Progress, bar
from penstock.core.audit.audit import Report
from penstock.server.bulk.alone import stand_alone
from penstock.server.bulk.checks import audit_view


def audit(data: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Counts and findings of a data folder's log.

    InvalidArgument for a folder that is none, LogDamaged where bytes are not what was written.  Without `progress` a
    bar is drawn when a person looks on.
    """
    from penstock.cli.logfiles import open_folder

    disk = open_folder(data if isinstance(data, str) else os.fspath(data))
    view = stand_alone(disk)
    try:
        with bar("records", progress) as show:
            return audit_view(view, show)
    finally:
        view.close()
