"""A model in parts: the best cuts of its execution order, the stages as models of their own, their proof."""
