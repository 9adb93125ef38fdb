"""What every part of a running server rests on: rounds of the loop, clocks, durability, faults, libraries."""
