"""Content filters at work off the loop: judging batches, scanning what waits, rating."""
