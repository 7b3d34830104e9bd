"""Facts from outside the model: figures from files, machines, and execution providers."""
