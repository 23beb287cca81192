"""Reference kernels, by family as llmx.program.kinds has them. Each is the formula of docs/program.md, in float32."""
