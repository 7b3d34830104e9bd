"""Commands that tile matmuls: what that would cost, the tiled model, many tilings side by side."""
