"""How many bytes messages have, without their bodies."""
