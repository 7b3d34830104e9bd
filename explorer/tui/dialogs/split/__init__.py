"""Splitting on the screen: how a model is to be cut, and its stages while cuts move."""
