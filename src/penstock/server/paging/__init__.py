"""State of queues and topics in files instead of memory."""
