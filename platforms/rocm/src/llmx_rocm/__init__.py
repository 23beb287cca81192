"""llmx on AMD GPUs, through torch for ROCm."""
