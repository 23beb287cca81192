"""Model families: the registry, one file per family of builders, and loading."""
