"""Kernels of abi jax/1, by family as llmx.program.kinds has them. Each is the formula of docs/program.md; values between ops are float32."""
