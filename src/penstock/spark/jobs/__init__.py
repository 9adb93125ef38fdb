"""Work on very much history as Spark jobs, with the same answers as the commands: audit, redrive."""
