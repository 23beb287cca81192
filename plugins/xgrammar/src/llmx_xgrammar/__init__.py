"""Structured output with XGrammar; found through the entry point group `llmx.plugins`."""
