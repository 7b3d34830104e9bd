"""Opened models, by kind: what each can answer."""
