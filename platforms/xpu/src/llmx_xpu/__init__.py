"""llmx on Intel GPUs, through torch.xpu."""
