"""Files that hold tensors and nothing else."""
