"""What the core asks for and the outside works out beside the loop: bodies, filters, ranks, passes over the log."""
