"""Commands that time the model."""
