"""Barriers: what waits for what, and when they are let go."""
