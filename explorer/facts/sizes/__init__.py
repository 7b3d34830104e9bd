"""Facts over sizes: figures as an open size grows, and decode steps beside whole passes."""
