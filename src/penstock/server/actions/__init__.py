"""Actions: what is set off by what happened, once it is durable."""
