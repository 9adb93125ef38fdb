"""How a server opens: sockets, recovery with its progress, the doors in their order."""
