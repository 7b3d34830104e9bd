"""ATen operators: what each costs, and how a call of one is seen while a module runs."""
