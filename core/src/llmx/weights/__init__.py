"""Weights: model files as mapped tensors under canonical names; what their bytes mean is in `quant`."""
