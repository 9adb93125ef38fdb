"""Limits of a queue's length: what gives way when more is ready than its settings allow."""
