"""Having pyarrow not look for pandas in our processes: that takes 150 ms and 34 MiB, and no array of ours needs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas:
    """Answers for pandas that it is not there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The import system's question."""
        if fullname == "pandas":
            raise ModuleNotFoundError("a server does without pandas", name=fullname)
        return None


def do_without_pandas() -> None:
    """Have pyarrow not look for pandas, where that is installed; it would when an array is made of a list."""
    sys.meta_path.insert(0, _NoPandas())
