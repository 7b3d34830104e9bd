"""Settings that users write: machines, tilings, number formats, filters, sizes."""
