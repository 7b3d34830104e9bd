"""Facts about serving a language model: the cost of its passes, its KV cache, and layouts over devices."""
