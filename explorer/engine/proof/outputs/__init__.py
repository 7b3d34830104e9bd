"""Runs whole models and compares their outputs."""
