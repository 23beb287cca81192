"""Answers: what a model's text says: reasoning, content and tool calls, taken apart while it streams.

Formats are declared in tables (tool_formats, reasoning_formats); one machine reads them all (parser). Nothing here knows HTTP.
"""
