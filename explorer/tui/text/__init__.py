"""Lines with roles, their colors, and plots made of text."""
