"""Float64 reference of the original: how far rounding alone goes."""
