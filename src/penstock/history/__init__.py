"""What the files of a log tell: ranges and topics of the past, read without its lock, by the server, its bulk child and
tasks of Spark alike.

Owns which rows those are and as which columns they come.  Knows no loop, no queue and no door.
"""
