"""The core: queue rules and state, pure, on batches; no clock, disk or network of its own."""
