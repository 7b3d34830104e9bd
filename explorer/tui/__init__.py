"""The screen: what `explorer MODEL` opens. It knows facts and the worker's door, and nothing heavier."""
