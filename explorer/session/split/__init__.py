"""Models of a session in parts: what they are cut into, written, and proved."""
