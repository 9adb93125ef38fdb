"""One member of a cluster: its process beside the server's, the stream between leader and followers, and registers.

member        what a member does, from what it hears; no socket, no thread, no clock of its own
following     a follower's end of the stream, and its copy of the log
log_sending   the leader's end of the stream to one follower, and the files it reads
registers     who leads, as others keep it: a file, etcd
process       the member's own process: sockets, timers, the register in a thread
leading       the server's side: it starts that process, is told when to lead, and what is committed
"""
