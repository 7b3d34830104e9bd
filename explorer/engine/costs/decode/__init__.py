"""Decoding: what one step costs, with the cache that it reads."""
