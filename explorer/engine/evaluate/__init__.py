"""Evaluation: runs the samples of a file through models, batch by batch, and scores their outputs."""
