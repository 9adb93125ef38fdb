"""A queue: a view over the log.  Contents, what lasts of it, arrival and its parts by what they decide."""
