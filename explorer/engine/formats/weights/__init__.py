"""Readers of formats that contain only tensors: safetensors, GGUF, and Hugging Face folders."""
