"""Words about number formats: what was chosen for each layer, what it costs and what it saves."""
