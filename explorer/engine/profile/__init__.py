"""Profile: how long a model runs on this machine, layer by layer, how sure that is, and what else ran."""
