"""The command `penstock`: one file for each family of commands.

Owns arguments, tables, JSON lines and exit statuses; every command loads what it needs when it runs, so that
`penstock --help` is quick.  Knows no rule of a queue and no byte of a protocol.
"""
