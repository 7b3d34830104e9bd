"""Facts about the models and sessions that can be opened."""
