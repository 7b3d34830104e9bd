"""Overlays as other tools write them: traces of profilers, reports of SCALE-Sim."""
