"""Upkeep of the log beside the work: checkpoints, retention, holds, compaction."""
