"""Evaluation and training as facts: what a data file says of models, and what training one did."""
