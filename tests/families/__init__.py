"""Every model family against transformers."""
