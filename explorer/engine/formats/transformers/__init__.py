"""Models of Hugging Face's transformers: built from their configuration and matched with their weights."""
