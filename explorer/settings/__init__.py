"""Settings, what a user writes: machines, tilings, filters, sizes."""
