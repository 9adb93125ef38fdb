"""The audit: what must be true of a log and of the state that it gives."""
