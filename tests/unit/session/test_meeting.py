"""Processes of several devices wait for each other, and for none that has left."""

from __future__ import annotations

from threading import Thread

import pytest

from tputfind.session.meeting import Meeting, Seat

WAIT_S = 10


def started(work, *arguments):
    thread = Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def test_nobody_goes_on_before_all_have_come_and_then_all_do_again_and_again():
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


def test_a_seat_keeps_when_its_process_worked_and_is_left_once():
    meeting = Meeting(1)
    seat = Seat(meeting)
    seat.meets(1.0)
    seat.window(2.0, begins=True)
    seat.window(3.0, begins=False)
    seat.meets(3.5)
    seat.leave(4.0)
    seat.leave(9.0)

    assert (seat.busy_from_s, seat.window_s, seat.busy_until_s) == (1.0, (2.0, 3.0), 4.0)
