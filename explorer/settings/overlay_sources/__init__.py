"""Overlays in the formats of other tools: traces of profilers, reports of SCALE-Sim."""
