"""AMQP 0-9-1 without a socket: `ServerConnection` turns bytes into events, `deliver` turns messages into bytes."""
