"""What was measured: time, layer by layer."""
