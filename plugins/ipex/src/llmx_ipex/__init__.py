"""Kernels of Intel Extension for PyTorch for the torch executor of llmx; found through the entry point group `llmx.kernels`."""
