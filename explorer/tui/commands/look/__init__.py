"""Commands that look: at the tree, at tiles, at values, at what a training step costs."""
