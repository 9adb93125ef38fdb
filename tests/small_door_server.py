"""`penstock` whose Flight door may have a quarter of what one usually has, beside what it decompresses."""

from __future__ import annotations

from penstock.cli.main import main
from penstock.server.base import loading

if __name__ == "__main__":
    loading.DOOR_MEMORY //= 4
    loading.STACKS //= 4
    main()
