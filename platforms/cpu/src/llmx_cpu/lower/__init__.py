"""From a Program and its chosen kernels to a tape: `tape` walks the ops, `basic`, `attention` write the records of each kind."""

__all__: list[str] = []
