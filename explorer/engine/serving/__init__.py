"""Serving of a language model: prompt and steps counted with its own cache, and what follows on devices."""
