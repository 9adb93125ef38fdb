"""Listening sockets, TLS, and who has not logged in yet: the same for every door."""
