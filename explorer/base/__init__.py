"""Small modules that every other module may import: errors, units, verdicts."""
