"""Converts facts to blocks, one module per subject. Text, screen and page draw the same blocks."""
