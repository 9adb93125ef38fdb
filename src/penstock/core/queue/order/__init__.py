"""The order in which messages leave a queue: those never delivered, and those that came back."""
