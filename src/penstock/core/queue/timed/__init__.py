"""What happens to messages by time alone: delays, expiry, leases that end."""
