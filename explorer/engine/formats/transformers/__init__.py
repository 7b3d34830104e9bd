"""Models of Hugging Face's transformers: built from what stands beside their weights, matched with those."""
