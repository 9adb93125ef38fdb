"""`penstock` whose Flight door may have half of what one usually has, beside stacks and what it decompresses."""

from __future__ import annotations

from penstock.cli.main import main
from penstock.server.base import loading

if __name__ == "__main__":
    loading.DOOR_MEMORY //= 2
    main()
