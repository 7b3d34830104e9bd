"""Serving of a language model: prompt and decode steps counted with its own cache, and times on devices."""
