"""ATen operators: cost of each operator, and interception of calls while a module runs."""
