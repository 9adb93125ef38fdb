"""Who leads a cluster of servers, which members count, and what is sent to whom: pure rules.

A cluster is members with copies of one log.  One leads and writes; who that is, and whose word a confirm waits for, is
one value in a register that others keep (`register`), changed by compare-and-set alone.  Nothing here knows a socket,
a disk or a clock.
"""
