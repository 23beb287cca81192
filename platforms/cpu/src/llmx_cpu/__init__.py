"""The CPU platform of llmx: probe, plugin, the native executor and its op tape."""

__all__: list[str] = []
