"""Models of a session edited by hand."""
