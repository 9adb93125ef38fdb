"""SOW topics ("state of the world"): of each key the last value.  Keys, the index, merging, expiry; pure."""
