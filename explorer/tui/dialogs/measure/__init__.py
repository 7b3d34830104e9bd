"""Measuring on the screen: how a model is to be timed, and what was found."""
