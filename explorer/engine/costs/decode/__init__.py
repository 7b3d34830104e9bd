"""What one step of decoding costs, with the cache that it reads."""
