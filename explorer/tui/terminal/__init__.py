"""Terminals: over SSH, on a console, with a clipboard far away."""
