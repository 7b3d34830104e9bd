"""TorchScript files and exported programs: rebuilds an nn.Module from each file, without running its code."""
