"""What executors and the driver do to write: rows as messages, staged and then made visible once."""
