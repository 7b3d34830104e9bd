"""Words about two models: what differs, and whether they compute the same."""
