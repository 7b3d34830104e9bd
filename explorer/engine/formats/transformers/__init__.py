"""Models of Hugging Face's transformers: builds a module from a configuration and matches its weights."""
