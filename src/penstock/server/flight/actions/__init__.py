"""DoAction, each kind of action in its own file; `table` joins them."""
