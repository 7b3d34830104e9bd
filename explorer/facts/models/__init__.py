"""Facts about what there is to be opened."""
