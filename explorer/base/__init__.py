"""What everything else may import: errors, units, verdicts."""
