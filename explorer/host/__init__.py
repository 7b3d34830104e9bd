"""What the machine and its files allow: memory, paths, processes of our own, packages that may be missing."""
