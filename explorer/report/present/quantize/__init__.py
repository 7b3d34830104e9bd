"""Number formats in words: what was chosen for each layer, what it costs and what it saves."""
