"""Commands about one model: its structure and its costs."""
