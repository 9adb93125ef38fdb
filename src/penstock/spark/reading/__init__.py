"""What executors and the driver do to read: batches, streams, and the rows of a part."""
