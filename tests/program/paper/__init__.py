"""Paper models: builders from a configuration alone, checked against transformers' parameters. They ship when an executor runs them."""
