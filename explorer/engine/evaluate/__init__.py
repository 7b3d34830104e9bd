"""Evaluation: samples of a file through models, batch by batch, and what their outputs are worth."""
