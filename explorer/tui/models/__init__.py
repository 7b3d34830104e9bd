"""Models of the screen: choosing one to open, and those that are open."""
