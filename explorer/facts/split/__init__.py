"""Facts about a model in parts: where it is cut, what each stage is, what the pipeline of them does."""
