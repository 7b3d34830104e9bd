"""Model outputs: whole models, held against each other."""
