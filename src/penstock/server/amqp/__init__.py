"""AMQP sessions: what the wire machine says becomes commands of the core, what the core does becomes frames."""
