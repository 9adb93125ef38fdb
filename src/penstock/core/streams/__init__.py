"""Durable streams and sinks: what is granted, settled and visible once."""
