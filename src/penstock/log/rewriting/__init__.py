"""Closed segments written anew: what to rewrite and why, the rewriting, and the indexes of names beside them.

A plan is made from plain values, and a rewriting leaves a whole new file beside the old one; neither changes a running
log.  `swap` puts it in the old one's place, in the process that owns the log.
"""
