"""The server as its HTTP door sees and commands it; one file a noun, beside those of `wire.http`."""
