"""Actions, the pure part: templates, conditions, times, and what an action publishes."""
