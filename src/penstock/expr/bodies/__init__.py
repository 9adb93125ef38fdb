"""How bodies are read: one row a message type, and a parser for each."""
