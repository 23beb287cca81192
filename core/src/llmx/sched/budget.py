"""TokenBudget: how many tokens the next step may bring, so that a prefill chunk does not stall those who decode.

A step that mixes decode rows with prefill rows may take min(60 ms, 2.2 x a decode-only step), measured as the engine runs
and first by its warm-up; never less than 64 prefill tokens, else long prompts would starve. With nobody decoding the whole
budget is free, and so it is where nobody watches tokens come (offline batches).
"""

from __future__ import annotations

__all__ = ["TokenBudget"]

MIXED_STEP_US = 60_000.0  # a gap between tokens that a reader does not notice
MIXED_STEP_RATIO = 2.2  # against the decode-only step
FLOOR_TOKENS = 64
SMOOTHING = 0.2  # weight of a new measurement


class TokenBudget:
    """Running estimates of what a decode-only step and a prefill token cost, in microseconds."""

    def __init__(self, max_tokens: int, *, interactive: bool = True) -> None:
        self.max_tokens = max_tokens
        self.interactive = interactive  # somebody reads tokens as they come
        self.decode_us: float | None = None
        self.prefill_token_us: float | None = None
        self.used = 0.0  # share of max_tokens that the last step used

    def prefill_tokens(self, num_decoding: int) -> int:
        """Prefill tokens that the next step may bring beside `num_decoding` decode rows."""
        room = self.max_tokens - num_decoding
        if not self.interactive or num_decoding == 0 or self.decode_us is None or self.prefill_token_us is None:
            return max(room, 0)
        limit_us = min(MIXED_STEP_US, MIXED_STEP_RATIO * self.decode_us)
        affordable = int(max(limit_us - self.decode_us, 0.0) / self.prefill_token_us)
        return max(min(max(affordable, FLOOR_TOKENS), room), 0)

    def observe(self, num_decoding: int, num_prefill: int, step_us: float) -> None:
        """Learn from a finished step: its decode rows, its prefill tokens and how long it took."""
        self.used = (num_decoding + num_prefill) / self.max_tokens
        if step_us <= 0:
            return
        if num_prefill == 0 and num_decoding:
            self.decode_us = _blend(self.decode_us, step_us)
        elif num_prefill:
            base = (self.decode_us or 0.0) if num_decoding else 0.0
            self.prefill_token_us = _blend(self.prefill_token_us, max(step_us - base, 1.0) / num_prefill)


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)
