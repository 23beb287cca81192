"""The meaning of every weight format, in numpy: one file per family of schemes."""

from llmx.weights.quant.schemes import dequantize, quant_key, quantize

__all__ = ["dequantize", "quant_key", "quantize"]
