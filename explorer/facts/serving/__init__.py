"""Facts about serving a language model: what its passes cost, what its cache holds, which devices it fits."""
