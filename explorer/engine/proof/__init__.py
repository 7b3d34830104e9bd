"""Proves that two graphs compute the same, or shows where they differ (see `proof.verify`)."""
