"""Split of a model: the best cuts of its execution order, the stages as models of their own, their proof."""
