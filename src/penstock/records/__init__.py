"""Plain values that every floor shares: record kinds, LSN chunks, batches of rows, the message header codec.

Nothing here decides anything, and nothing here knows a socket, a disk, a clock or a queue rule.
"""
