"""ggml: the blocks that llama.cpp stores quantized tensors in, their numbers and what these are made of."""
