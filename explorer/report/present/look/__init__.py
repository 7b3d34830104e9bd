"""One model in words: what it is made of, and what that costs."""
