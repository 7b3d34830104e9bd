"""Heat map on the screen: the numbers of a tensor, and what is far out in it."""
