"""An nn.Module: how it is had, and what inputs it takes."""
