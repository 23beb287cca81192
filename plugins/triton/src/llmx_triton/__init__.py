"""Kernels in Triton for platforms of llmx that run on torch."""
