"""What a server that a test starts does for the check of claims: it runs a mutant, or tells which lines it ran.

Python imports this at its start where the folder is in PYTHONPATH.  Without the variables it does nothing.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from types import CodeType
from typing import Any

_MUTANT = os.environ.get("PENSTOCK_CLAIMS_MUTANT", "")
_LINES = os.environ.get("PENSTOCK_CLAIMS_LINES", "")

if _MUTANT:
    from claims.mutants import SOURCE, mutated

    class _Loader(importlib.machinery.SourceFileLoader):
        def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
            tree = mutated(bytes(data).decode(), int(_MUTANT.partition("#")[2]))
            return compile(tree, path, "exec", optimize=_optimize, dont_inherit=True)

        def get_code(self, fullname: str) -> CodeType | None:
            path = self.get_filename(fullname)
            return self.source_to_code(self.get_data(path), path)  # never what was compiled before

    class _Finder:
        """Finds one module: the one that is changed."""

        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
            wanted = _MUTANT.partition("#")[0]
            if name != wanted.removesuffix(".py").removesuffix("/__init__").replace("/", "."):
                return None
            file = str(SOURCE / wanted)
            spec = importlib.machinery.ModuleSpec(
                name, _Loader(name, file), origin=file, is_package=wanted.endswith("__init__.py")
            )
            spec.has_location = True
            return spec

    sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
elif _LINES:
    import atexit

    from claims.lines import Lines

    _seen = Lines()
    _seen.begin()

    def _tell() -> None:
        _seen.end()
        with open(os.path.join(_LINES, f"{os.getpid()}.lines"), "w", encoding="utf-8") as file:
            file.writelines(f"{path}:{line}\n" for path, line in sorted(_seen.seen))

    atexit.register(_tell)
