"""Parts of a session: its models, their history, and the functions behind its methods."""
