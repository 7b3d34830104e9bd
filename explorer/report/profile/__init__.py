"""Files of a profile, for other tools: a trace, collapsed stacks, TensorBoard's events."""
