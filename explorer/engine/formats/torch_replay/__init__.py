"""TorchScript and torch.export programs, rebuilt from their files and run as modules."""
