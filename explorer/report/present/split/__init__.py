"""Words of the verbs that take models apart."""
