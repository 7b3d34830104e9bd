"""What a data file says of models, and what training one did."""
