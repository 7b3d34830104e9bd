"""Tilings in words: what they would do, cost, and did."""
