"""Commands that change the view, but not the model."""
