"""The numbers of a tensor on the screen: a map of them, and what is far out in it."""
