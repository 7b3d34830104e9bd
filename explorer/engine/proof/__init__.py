"""Proof of equality: two graphs in, numeric evidence out (see `proof.verify`)."""
