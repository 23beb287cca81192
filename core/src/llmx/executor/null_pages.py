"""Pages of the null executor: int64 kv slots that hold (position + 1) << 32 | token, and int64 running hashes as states."""

from __future__ import annotations

import numpy as np

from llmx.batch import KvOp
from llmx.kv.spec import GroupPlan, KVPlan

__all__ = ["KVFault", "NullPages", "history_hash"]

_PRIME = 1_099_511_628_211  # FNV-1a, 64 bit
_MASK = (1 << 63) - 1


class KVFault(AssertionError):
    """The pages a row reads do not hold what the request's history says: a fault in block accounting."""


def history_hash(tokens: list[int], seed: int = 1_469_598_103_934_665_603 & _MASK) -> int:
    """A 63-bit hash of a token sequence; continues from `seed`."""
    for token in tokens:
        seed = ((seed ^ (token + 1)) * _PRIME) & _MASK
    return seed


class NullPages:
    """Pages and block-table rows of every group."""

    def __init__(self, plan: KVPlan) -> None:
        self._groups = plan.groups
        self._pages = [np.zeros((g.num_blocks, 1 if g.need.spec.kind == "state" else g.need.block_tokens), np.int64) for g in plan.groups]
        self._tables = [np.zeros((plan.max_requests, _row_length(g, plan.max_model_len)), np.int32) for g in plan.groups]

    def clear_row(self, slot: int) -> None:
        """The slot's tables are stale from now on: -1, so that a read of an entry never set is noticed."""
        for table in self._tables:
            table[slot] = -1

    def copy_row(self, parent: int, child: int) -> None:
        """A fork takes over the parent's tables."""
        for table in self._tables:
            table[child] = table[parent]

    def set_blocks(self, group: int, rows: np.ndarray) -> None:
        """rows i32 [n, 3]: (slot, index, block)."""
        for slot, index, block in rows.tolist():
            if not 0 <= block < self._groups[group].num_blocks:
                raise KVFault(f"block {block} of group {group} does not exist")
            self._tables[group][slot, index] = block

    def run_ops(self, ops: np.ndarray) -> list[int]:
        """Carry out kv_ops in order; the indexes of finished loads and stores."""
        done = []
        for index, (op, group, src, dst) in enumerate(ops.tolist()):
            pages = self._pages[group]
            if op == KvOp.STATE_COMMIT:  # src: which of the places 0..k is accepted, dst: the slot
                table = self._tables[group][dst]
                pages[table[0]] = pages[table[src]]
                continue
            if op in (KvOp.ZERO, KvOp.COPY, KvOp.STATE_COPY) and dst == 0:
                raise KVFault(f"{KvOp(op).name} writes the null block of group {group}")
            if op == KvOp.ZERO:
                pages[dst] = 0
            elif op in (KvOp.COPY, KvOp.STATE_COPY):
                pages[dst] = pages[src]
            else:
                done.append(index)
        return done

    def forward(self, slot: int, sequence: list[int], start: int, drafts: int, *, check_tail: bool) -> None:
        """Write positions start.. of `sequence` and check everything that its rows read.

        drafts: how many of the last tokens are drafts. check_tail: kv slots past the end must be zero.
        """
        for index, group in enumerate(self._groups):
            if group.need.spec.kind == "state":
                self._forward_state(index, slot, sequence, start, drafts)
            else:
                self._forward_tokens(index, slot, sequence, start, check_tail=check_tail)

    def _forward_tokens(self, index: int, slot: int, sequence: list[int], start: int, *, check_tail: bool) -> None:
        need = self._groups[index].need
        size, end = need.block_tokens, len(sequence)
        blocks = self._tables[index][slot, : -(-end // size)]
        first = max(start - need.spec.window + 1, 0) if need.spec.kind == "sliding" and need.spec.window else 0
        if (blocks[first // size :] <= 0).any():
            raise KVFault(f"slot {slot}, group {index}: positions {first}..{end - 1} need blocks {blocks[first // size :].tolist()}, one of them is not given")
        pages = self._pages[index]
        wanted = np.array(sequence, np.int64) | (np.arange(1, end + 1, dtype=np.int64) << 32)
        places = np.arange(start, end)
        pages[blocks[places // size], places % size] = wanted[start:]
        seen = np.arange(first, end)
        actual = pages[blocks[seen // size], seen % size]
        wrong = np.flatnonzero(actual != wanted[first:])
        if wrong.size:
            at = first + int(wrong[0])
            held = int(pages[blocks[at // size], at % size])
            raise KVFault(
                f"slot {slot}, group {index}: position {at} should hold token {sequence[at]}, block {int(blocks[at // size])} holds "
                f"token {held & 0xFFFFFFFF} of position {(held >> 32) - 1}"
            )
        if check_tail and end % size and pages[blocks[-1], end % size :].any():
            raise KVFault(f"slot {slot}, group {index}: block {int(blocks[-1])} was not zeroed when it changed owner")

    def _forward_state(self, index: int, slot: int, sequence: list[int], start: int, drafts: int) -> None:
        table, pages = self._tables[index][slot], self._pages[index]
        if table[0] <= 0:
            raise KVFault(f"slot {slot}, group {index}: no place for its state was given")
        expected = history_hash(sequence[:start]) if start else 0
        if int(pages[table[0], 0]) != expected:
            raise KVFault(f"slot {slot}, group {index}: the state in place {int(table[0])} is not that of {start} tokens")
        first = len(sequence) - drafts
        pages[table[0], 0] = history_hash(sequence[:first])
        for draft in range(1, drafts + 1):
            if table[draft] <= 0:
                raise KVFault(f"slot {slot}, group {index}: draft {draft} has no place")
            pages[table[draft], 0] = history_hash(sequence[: first + draft])


def _row_length(group: GroupPlan, max_model_len: int) -> int:
    return 17 if group.need.spec.kind == "state" else -(-max_model_len // group.need.block_tokens) + 1
