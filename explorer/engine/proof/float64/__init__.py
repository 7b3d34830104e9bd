"""The original in float64: how far rounding alone goes."""
