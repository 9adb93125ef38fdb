"""What views gather: their definitions, the aggregates, and how a row looks; by whoever computes them."""
