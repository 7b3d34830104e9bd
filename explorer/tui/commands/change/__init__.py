"""Commands that change, save, prove or compare the model."""
