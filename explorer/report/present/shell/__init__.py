"""Shell verbs in words: the manual, the cache, machines, history."""
