"""The log: Arrow segments, group commit, recovery, checkpoints, retention; and the disks it can live on."""

from penstock.log.disk import OsDisk
from penstock.log.listing import SegmentInfo
from penstock.log.log import Log
from penstock.log.recover import Recovery
from penstock.log.settings import MEMORY, LogSettings
from penstock.log.simdisk import SimDisk

__all__ = ["MEMORY", "Log", "LogSettings", "OsDisk", "Recovery", "SegmentInfo", "SimDisk"]
