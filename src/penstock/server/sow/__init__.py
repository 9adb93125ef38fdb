"""SOW topics in a running server: bodies of present records, queries, live subscriptions."""
