"""Stages of an nn.Module: where torch's own program of it is cut, the parts as files, the proof."""
