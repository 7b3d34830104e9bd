"""Models held against each other, and against what other tools print of them."""
