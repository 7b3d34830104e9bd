"""Computes the cost of each ATen operator, and intercepts calls while a module runs."""
