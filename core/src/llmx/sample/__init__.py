"""Sampling: the row an executor keeps per slot (params_rows), its meaning in numpy (reference), logprobs in output form."""
