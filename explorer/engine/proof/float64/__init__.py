"""Float64 reference of the original: the error that rounding alone explains."""
