"""How deliveries end: leases, acks, failures, attempts, dead letters."""
