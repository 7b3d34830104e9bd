"""A session's answers over open sizes."""
