"""Lines of roles, their colours, and plots made of text."""
