"""ggml: the blocks in which llama.cpp stores quantized tensors, with their numbers, codes and scales."""
