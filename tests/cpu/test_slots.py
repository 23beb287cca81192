"""The native slot table: the changes of one Step, in the order that llmx.batch documents."""

from __future__ import annotations

import numpy as np
import pytest

from llmx.batch import EMPTY_I32, Joined
from llmx.sample.params_rows import SamplingRow

PENALIZED = SamplingRow(repetition_penalty=1.2)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_join_keeps_history_and_last_token(open_slots):
    table = open_slots()
    table.join(2, SamplingRow(), ids(5, 6, 7), 3)
    state = table.read(2)
    assert (state.used, state.prompt_len, state.last_token, state.history) == (True, 3, 7, [5, 6, 7])
    assert not state.penalties
    assert not table.read(1).used


def test_append_extends_history_and_counts(open_slots):
    table = open_slots()
    table.join(0, PENALIZED, ids(5, 6, 5), 3)
    for token in (6, 9, 9):
        table.append(0, token)
    state = table.read(0)
    assert state.history == [5, 6, 5, 6, 9, 9]
    assert state.last_token == 9
    assert state.prompt_len == 3
    assert [table.count(0, token) for token in (5, 6, 9, 1)] == [0, 1, 2, -1]


@pytest.mark.parametrize("row", [SamplingRow(presence_penalty=0.5), SamplingRow(frequency_penalty=-0.5), PENALIZED])
def test_each_penalty_turns_counting_on(open_slots, row):
    table = open_slots()
    table.join(0, row, ids(1), 1)
    assert table.read(0).penalties
    assert table.count(0, 1) == 0


def test_preempted_request_counts_what_it_had_generated(open_slots):
    table = open_slots()
    table.join(0, PENALIZED, ids(1, 2), 2)
    for token in (3, 2, 3):
        table.append(0, token)
    error = table.apply(left=(0,))
    assert error == ""
    table.join(3, PENALIZED, ids(1, 2, 3, 2, 3), 2)
    assert [table.count(3, token) for token in (1, 2, 3)] == [0, 1, 2]
    assert table.read(3).prompt_len == 2


def test_slot_given_up_can_be_taken_in_the_same_step_and_starts_with_null_blocks(open_slots):
    table = open_slots(max_blocks=(4, 2))
    table.join(1, SamplingRow(), ids(1), 1)
    assert table.apply(new_blocks=([(1, 0, 7), (1, 1, 8)], [(1, 1, 3)])) == ""
    assert table.blocks(0, 1) == [7, 8, 0, 0]
    assert table.blocks(1, 1) == [0, 3]
    error = table.apply(joined=(Joined(1, ids(9, 9), 2, SamplingRow()),), left=(1,), new_blocks=([(1, 2, 5)], []))
    assert error == ""
    assert table.blocks(0, 1) == [0, 0, 5, 0]
    assert table.blocks(1, 1) == [0, 0]
    assert table.read(1).history == [9, 9]


def test_fork_copies_history_counts_and_the_blocks_of_the_same_step(open_slots):
    table = open_slots()
    table.join(0, PENALIZED, ids(1, 2), 2)
    table.append(0, 4)
    child = Joined(3, EMPTY_I32, 2, PENALIZED, fork_of=0)
    assert table.apply(joined=(child,), new_blocks=([(0, 0, 11), (0, 1, 12)],)) == ""
    state = table.read(3)
    assert (state.history, state.last_token, state.prompt_len) == ([1, 2, 4], 4, 2)
    assert [table.count(3, token) for token in (1, 2, 4)] == [0, 0, 1]
    assert table.blocks(0, 3) == [11, 12] + [0] * 6
    table.append(3, 8)
    assert table.read(0).history == [1, 2, 4]
    assert table.count(0, 8) == -1


def test_fork_of_a_request_that_joins_in_the_same_step(open_slots):
    table = open_slots()
    parent = Joined(1, ids(5, 6), 2, SamplingRow())
    child = Joined(0, EMPTY_I32, 2, PENALIZED, fork_of=1)
    assert table.apply(joined=(child, parent), new_blocks=([(1, 0, 3)],)) == ""
    assert table.read(0).history == [5, 6]
    assert table.count(0, 5) == 0  # its own row asks for counts, the parent's does not
    assert table.count(1, 5) == -1
    assert table.blocks(0, 0)[0] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left": (9,)}, "slots are 0..3"),
        ({"left": (-1,)}, "slots are 0..3"),
        ({"left": (2,)}, "no request holds it"),
        ({"left": (0, 0)}, "no request holds it"),
        ({"joined": (Joined(4, ids(1), 1, SamplingRow()),)}, "slots are 0..3"),
        ({"joined": (Joined(0, ids(1), 1, SamplingRow()),)}, "a request holds it"),
        ({"joined": (Joined(1, ids(1), 2, SamplingRow()),)}, "prompt of 2 tokens"),
        ({"joined": (Joined(1, EMPTY_I32, 1, SamplingRow(), fork_of=2),)}, "no request holds it"),
        ({"joined": (Joined(1, EMPTY_I32, 9, SamplingRow(), fork_of=0),)}, "prompt of 9 tokens"),
        ({"joined": (Joined(0, EMPTY_I32, 1, SamplingRow(), fork_of=0),)}, "a request holds it"),
        ({"new_blocks": ([(0, 8, 1)],)}, "block tables of group 0 have 8 entries"),
        ({"new_blocks": ([(0, -1, 1)],)}, "index -1"),
        ({"new_blocks": ([(1, 0, 1)],)}, "no request holds it yet"),
        ({"new_blocks": ([(0, 0, -3)],)}, "block -3"),
    ],
)
def test_bugs_of_the_caller_are_named(open_slots, change, message):
    table = open_slots()
    table.join(0, SamplingRow(), ids(1), 1)
    assert message in table.apply(**change)
