"""llguidance's masks of many rows, which threads share, are those of the rows one by one."""

from __future__ import annotations

import numpy as np

from llmx.structured import GrammarSpec, TokenTable, mask_words
from llmx_llguidance import backend as llguidance_backend


def test_the_masks_of_a_large_step_are_those_of_its_rows(tiny_table: TokenTable) -> None:
    backend = llguidance_backend.LLGuidanceBackend(tiny_table)
    compiled = backend.compile(GrammarSpec("regex", "[a-f]{1,9}(x|y)"))
    ids = {token: index for index, token in reversed(list(enumerate(tiny_table.tokens))) if len(token) == 1 and index not in tiny_table.special_ids}
    count = llguidance_backend._LARGE + 6
    texts = [[ids[bytes([letter])] for letter in b"abcdefabc"[: row % 10]] for row in range(count)]
    rows = [(7 * row + 3) % count for row in range(count)]  # not in order
    whole = np.zeros((count, mask_words(len(tiny_table.tokens))), np.uint32)
    backend.fill([compiled.matcher() for _ in texts], texts, rows, whole)
    for text, row in zip(texts, rows, strict=True):
        alone = np.zeros((1, whole.shape[1]), np.uint32)
        backend.fill([compiled.matcher()], [text], [0], alone)
        assert alone.any() and np.array_equal(alone[0], whole[row])
    assert len({mask.tobytes() for mask in whole}) > 1
