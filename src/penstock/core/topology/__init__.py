"""Exchanges, bindings, topics and queues by name, and what declares them."""
