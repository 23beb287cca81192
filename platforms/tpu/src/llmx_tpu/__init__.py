"""llmx-platform-tpu: models on TPUs, or on JAX's CPU backend, through one executor that traces Programs under jax.jit."""

__version__ = "0.1.0"
