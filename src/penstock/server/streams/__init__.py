"""Durable streams as the server sees them: planning ranges of the log, and what every stream holds and lacks."""
