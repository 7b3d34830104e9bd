"""Opens models of all formats, with a common protocol."""
