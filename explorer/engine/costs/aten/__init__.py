"""ATen operators: the cost of each, and how a call is observed while a module runs."""
