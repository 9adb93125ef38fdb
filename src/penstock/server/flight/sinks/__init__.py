"""Exactly-once writing: stages, and decided batches on their way from them to the log."""
