"""The durable state: encoded, decoded, folded from the log, passed over it."""
