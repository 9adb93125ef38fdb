"""Protocols without sockets: bytes to commands and effects, and back.  No queue rule lives here."""
