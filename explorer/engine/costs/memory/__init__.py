"""Memory over time, and the roofline."""
