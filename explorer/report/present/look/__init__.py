"""Words about one model: what it is made of, and what that costs."""
