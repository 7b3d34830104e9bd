"""Computes the costs of serving a language model: prompts and decode steps with its own cache, and times."""
