"""Publishing: from a batch to records, routes and queues."""
