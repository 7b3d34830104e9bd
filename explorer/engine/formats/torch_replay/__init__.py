"""TorchScript and torch.export programs, run as modules from what their files say."""
