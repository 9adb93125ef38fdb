"""`penstock` whose log takes long to open."""

from __future__ import annotations

import time
from typing import Any

from penstock.cli.main import main
from penstock.server import app

OPENS_S = 5.0
"""As a large log does: longer than the lease and the stall of the cluster that has it, which a takeover is to bear."""

if __name__ == "__main__":
    opened = app.open_core

    def slowly(*arguments: Any, **more: Any) -> Any:
        time.sleep(OPENS_S)
        return opened(*arguments, **more)

    app.open_core = slowly
    main()
