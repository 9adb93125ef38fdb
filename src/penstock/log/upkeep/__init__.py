"""Upkeep of closed segments: what to rewrite and why, the rewriting, and the indexes beside them.

Nothing here changes a running log: a plan is made from plain values, and a rewriting leaves a whole new file beside the
old one.  Putting it in the old one's place is `log.upkeep.swap`'s, in the process that owns the log.
"""
