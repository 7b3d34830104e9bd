"""Words of what is told over open sizes."""
