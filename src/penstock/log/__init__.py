"""The log: Arrow segments, group commit, recovery, checkpoints, retention; and the disks it can live on.

What is named here is loaded when it is first used: whoever reads the files of a log needs nothing that writes them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.log.catalog import SegmentInfo
    from penstock.log.disk import OsDisk
    from penstock.log.log import Log
    from penstock.log.mending import Recovery
    from penstock.log.simdisk import SimDisk
    from penstock.log.writer import MEMORY, LogSettings

_PLACES = {
    "MEMORY": "writer",
    "Log": "log",
    "LogSettings": "writer",
    "OsDisk": "disk",
    "Recovery": "mending",
    "SegmentInfo": "catalog",
    "SimDisk": "simdisk",
}

__all__ = ["MEMORY", "Log", "LogSettings", "OsDisk", "Recovery", "SegmentInfo", "SimDisk"]


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'penstock.log' has no attribute {name!r}")
    value: object = getattr(import_module(f"penstock.log.{place}"), name)
    globals()[name] = value  # the next access does not come here
    return value
