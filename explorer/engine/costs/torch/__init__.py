"""The layers of an nn.Module, with what each costs."""
