"""Models of the screen: the chooser of a model to open, and the list of open models."""
