"""The main screen: what it is composed of, how a model comes onto it, and how it is taken up again."""
