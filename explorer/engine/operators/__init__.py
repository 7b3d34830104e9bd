"""Operators: what each costs, makes and is in a backward pass or a text, in one record."""
