"""Heat map on the screen: the numbers of a tensor, and what is far out in it; statistics of all of them."""
