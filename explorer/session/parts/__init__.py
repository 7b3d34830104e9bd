"""Parts of a session: its models, their history, and what answers questions about them."""
