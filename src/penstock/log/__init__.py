"""The log: Arrow segments, group commit, recovery, checkpoints, retention; and the disks it can live on."""
