"""The torch executor: runs Programs op by op with kernels of abi torch/1. Correct before fast; imported only when it is chosen."""
