"""Training step: what it costs."""
