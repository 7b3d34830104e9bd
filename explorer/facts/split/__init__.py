"""Facts about a model that is split, edited, folded or cut into a part."""
