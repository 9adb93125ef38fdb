"""Modules are loaded with the descriptors that are kept back, where no others are free.

Most of the server's modules are loaded as it starts and some when they are first used, while its doors are open and
whoever comes may have taken every descriptor that there is.  A module that cannot be read then would end the server.
"""

from __future__ import annotations

import os
import sys
from importlib import machinery
from types import ModuleType

from penstock.log.descriptors import EXHAUSTED, lent


class _Source(machinery.SourceFileLoader):
    def get_data(self, path: str) -> bytes:
        return lent(lambda: super(_Source, self).get_data(path))


class _Extension(machinery.ExtensionFileLoader):
    def create_module(self, spec: machinery.ModuleSpec) -> ModuleType:
        def made() -> ModuleType:
            try:
                return super(_Extension, self).create_module(spec)
            except ImportError as error:  # the linker tells it as text alone
                for number in EXHAUSTED:
                    if os.strerror(number) in str(error):
                        raise OSError(number, os.strerror(number), self.path) from error
                raise

        return lent(made)


class _Finder(machinery.FileFinder):
    def find_spec(self, fullname: str, target: ModuleType | None = None) -> machinery.ModuleSpec | None:
        return lent(lambda: super(_Finder, self).find_spec(fullname, target))


def lend_to_modules() -> None:
    """From now on modules in folders are found and read so.  Twice does no harm."""
    if any(getattr(hook, "lends", False) for hook in sys.path_hooks):
        return
    hook = _Finder.path_hook(
        (_Extension, machinery.EXTENSION_SUFFIXES),
        (_Source, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )
    hook.lends = True  # type: ignore[attr-defined]
    at = next(
        (place for place, one in enumerate(sys.path_hooks) if "FileFinder" in getattr(one, "__qualname__", "")),
        len(sys.path_hooks),
    )
    sys.path_hooks.insert(at, hook)
    sys.path_importer_cache.clear()
