"""Model sources: the Hugging Face hub, its cache, and the commands about them."""
