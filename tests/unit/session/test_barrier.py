"""Processes of several devices wait for each other, but not for one that has left."""

import os
from threading import Thread

import pytest

from tputfind.processes.messages import Timed
from tputfind.session.barrier import Meeting

WAIT_S = 10


def started(work, *arguments):
    thread = Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def test_meeting_releases_all_threads_only_after_all_arrive():
    meeting, passed = Meeting(3), []

    def come(name):
        for number in range(20):
            meeting.wait()
            passed.append((number, name))

    threads = [started(come, name) for name in range(3)]
    for thread in threads:
        thread.join(WAIT_S)

    assert len(passed) == 60
    for number in range(19):
        last = max(place for place, (each, _) in enumerate(passed) if each == number)
        assert all(each <= number + 1 for each, _ in passed[: last + 1])


def test_who_leaves_is_waited_for_no_more():
    meeting = Meeting(2)
    waits = started(meeting.wait)
    waits.join(0.2)
    assert waits.is_alive()
    meeting.leave()
    waits.join(WAIT_S)
    assert not waits.is_alive()


def test_an_interruption_sends_everybody_home():
    meeting, raised = Meeting(2), []

    def come():
        with pytest.raises(KeyboardInterrupt):
            meeting.wait()
        raised.append(True)

    waits = started(come)
    meeting.interrupt()
    waits.join(WAIT_S)
    assert raised == [True]


def word(window, at_s):
    return Timed(window=window, at_s=at_s)


def heard(seat, *words):
    for each in words:
        seat.hear(word(*each))


def test_seat_reports_fraction_of_window_during_which_all_worked():
    meeting = Meeting(2)
    one, other = meeting.seats
    with one, other:
        waits = started(heard, other, ("meets", 2.5))
        heard(one, ("meets", 1.0), ("begins", 2.0), ("ended", 3.0))
        waits.join(WAIT_S)

        assert (one.all_busy_share, other.all_busy_share) == (0.5, None)
        assert os.read(one.reader, 10) == b"."  # it may go on


def test_seat_that_was_left_before_others_met_is_no_share_of_theirs():
    meeting = Meeting(2)
    one, other = meeting.seats
    other.leave()
    other.leave()
    with one:
        heard(one, ("meets", 1.0), ("begins", 2.0), ("ended", 3.0))

        assert one.all_busy_share == 0.0
