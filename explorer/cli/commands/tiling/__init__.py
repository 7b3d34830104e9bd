"""Commands that tile matrix products: what that would cost, the tiled model, many tilings side by side."""
