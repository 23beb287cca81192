"""Kernels of this package for core's torch executor; the only modules of llmx_cpu that import torch, imported by name when they are chosen."""
