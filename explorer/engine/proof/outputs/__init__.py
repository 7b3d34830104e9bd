"""Outputs of whole models, held against each other."""
