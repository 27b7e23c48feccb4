"""Ranks that wait in a collective in vain, detected from the states that ranks write."""

from __future__ import annotations

import pytest

from tputfind.processes import beats
from tputfind.processes.beats import Beat

AT_WORK, ENDED = True, False


def test_states_are_read_as_they_were_written(tmp_path):
    states = {0: Beat(3, AT_WORK, 7, 9), 1: Beat(2, ENDED, 5, 7)}
    for rank, state in states.items():
        beats.write(tmp_path, rank, state)

    assert beats.read(tmp_path, 3) == states


def test_state_that_is_half_written_is_left_out(tmp_path):
    (tmp_path / "beat-0").write_bytes(b"\0\0")

    assert beats.read(tmp_path, 1) == {}


def test_folder_that_is_gone_is_no_error(tmp_path):
    beats.write(tmp_path / "gone", 0, Beat(1, AT_WORK, 0, 0))

    assert beats.read(tmp_path / "gone", 1) == {}


@pytest.mark.parametrize(
    ("states", "waiting"),
    [
        ([Beat(2, AT_WORK, 4, 6), Beat(2, ENDED, 4, 5)], 0),  # the other waits for its next turn
        ([Beat(3, AT_WORK, 6, 7), Beat(2, AT_WORK, 4, 7)], 1),  # the other continued to the next step
        ([Beat(2, AT_WORK, 4, 6), Beat(2, AT_WORK, 4, 5)], None),  # the other may still come
        ([Beat(2, AT_WORK, 4, 6), Beat(2, ENDED, 4, 6)], None),
        ([Beat(3, AT_WORK, 6, 7), Beat(2, AT_WORK, 4, 6)], None),
        ([Beat(2, ENDED, 4, 8), Beat(2, ENDED, 4, 6)], None),  # between batches a rank may be ahead
        ([Beat(2, AT_WORK, 4, 6), Beat(1, ENDED, 2, 4)], None),
    ],
)
def test_rank_waiting_for_an_ended_step_is_named(states, waiting):
    found = beats.waits_in_vain(dict(enumerate(states)))

    assert (found and found[0]) == waiting


@pytest.mark.parametrize(
    ("counts", "latest"), [((6, 5), 1), ((4, 5), 0), ((5, 5), None), ((6, 5, 6), 1), ((6, 5, 5), None)]
)
def test_rank_that_others_wait_for_has_begun_the_fewest_collectives(counts, latest):
    states = {rank: Beat(2, AT_WORK, 4, count) for rank, count in enumerate(counts)}

    assert beats.latest(states, range(len(counts))) == latest


def test_no_rank_is_waited_for_if_one_rests_or_is_silent():
    states = {0: Beat(2, AT_WORK, 4, 6), 1: Beat(2, ENDED, 4, 5)}

    assert beats.latest(states, range(2)) is None
    assert beats.latest(states, range(3)) is None
