"""Facts about evaluating models on a data file and about training a model."""
