"""Shared nouns that everything else may import: errors, units, verdicts."""
