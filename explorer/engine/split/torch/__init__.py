"""Stages of an nn.Module: the cuts of its exported program, the stages as files, and their proof."""
