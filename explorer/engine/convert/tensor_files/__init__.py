"""Files of tensors alone, one kind into another."""
