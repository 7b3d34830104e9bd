"""A drawing of a model as a file: SVG, Graphviz's DOT, a page, Model Explorer's node data."""
