"""What a user writes: machines, tilings, filters, sizes."""
