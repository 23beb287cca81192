"""ProgressBar: how many requests are done, on a terminal, with tokens per second."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from llmx.engine.outputs import RequestOutput
from llmx.engine.pooling_outputs import PoolingRequestOutput

__all__ = ["ProgressBar"]


class ProgressBar:
    """A tqdm bar. wanted: True shows one where stderr is a terminal, False none; a callable makes the bar, called as tqdm is.

    Use: `with ProgressBar(True, "Processed prompts").over(10) as bar: bar.count(output)`.
    """

    def __init__(self, wanted: bool | Callable[..., Any], what: str) -> None:
        self._wanted, self._what = wanted, what
        self._bar: Any = None
        self._began, self._tokens = 0.0, [0, 0]

    def over(self, total: int) -> ProgressBar:
        """The bar for `total` steps."""
        make: Any = self._wanted
        options: dict[str, Any] = {"total": total, "desc": self._what, "dynamic_ncols": True}
        if self._wanted is True:
            from tqdm import tqdm  # 20 ms that a call without a bar need not pay

            make, options["disable"] = tqdm, None  # None: off where stderr is no terminal
        self._bar = make(**options) if make else None
        self._began = monotonic()
        return self

    def count(self, output: RequestOutput | PoolingRequestOutput | None = None) -> None:
        """One step more; with its output the speed is shown."""
        if self._bar is None:
            return
        if output is not None:
            self._tokens[0] += len(output.prompt_token_ids)
            self._tokens[1] += sum(len(answer.token_ids) for answer in output.outputs) if isinstance(output, RequestOutput) else 0
            seconds = max(monotonic() - self._began, 1e-9)
            given, made = (round(tokens / seconds) for tokens in self._tokens)
            self._bar.set_postfix_str(f"{given} prompt tokens/s, {made} new tokens/s", refresh=False)
        self._bar.update(1)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()
