"""DoGet: the log, queues, records and views as Arrow batches."""
