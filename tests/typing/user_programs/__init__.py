"""Small programs as users write them, which mypy and pyright read with the product and nobody runs.

What is right is asserted by `assert_type`; what is wrong has the mistake that a checker is to find at its end, and both
complain where they do not find it.
"""
