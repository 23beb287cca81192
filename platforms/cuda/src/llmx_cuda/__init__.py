"""llmx on NVIDIA GPUs, through torch."""
