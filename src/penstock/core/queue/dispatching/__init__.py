"""Who gets a queue's messages: consumers, fairness, filters."""
