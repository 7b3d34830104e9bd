"""Blame: the layer where two models part."""
