"""The engine: requests in, tokens out. engine (one step), start (from config to engine), llm (offline), process and
async_engine (the engine in a process of its own), output_processor (tokens to text)."""
