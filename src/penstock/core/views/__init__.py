"""Views: what a queue or topic holds, gathered by groups and kept up as messages come and go.  Pure."""
