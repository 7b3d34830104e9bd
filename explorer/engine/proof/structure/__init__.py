"""Equal by construction: what meets what, told without a run."""
