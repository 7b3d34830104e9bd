"""Facts about open sizes: figures as a size grows, and a decode step next to a full pass."""
