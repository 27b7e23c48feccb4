import zlib
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.folders import GOLDEN

from tputfind.record.trace import MOST_EVENTS, Event, Trace, pack_events
from tputfind.search.edge import find_edge
from tputfind.search.replay import Forecast, Memory, Program, Replay, readable, right_about

MIB = 2**20
GIB = 2**30
PLENTY = 2**50


class Recording(msgspec.Struct, kw_only=True):
    """A trial on an H200 with torch 2.11, and its peaks reported by torch."""

    model: str
    dtype: str
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    trace: Trace

    def __str__(self) -> str:
        memory = f"{self.trace.memory_bytes // GIB}GiB" if self.trace.capped else "device"
        segments = "expandable" if self.trace.expandable else "native"
        return f"{self.model}-{self.trace.batch_size}-{memory}-{segments}{'' if self.trace.complete else '-failed'}"


RECORDINGS = msgspec.json.decode((GOLDEN / "allocator-traces.json").read_bytes(), type=list[Recording])
PASSED = [recording for recording in RECORDINGS if recording.trace.complete]
FAILED = [recording for recording in RECORDINGS if not recording.trace.complete]


def trace(*events: tuple[str, int], batch_size: int = 10, fixed: int = 0, complete: bool = True) -> Trace:
    """Return a trace in an expandable segment, in which allocated equals requested memory."""
    return Trace(
        batch_size=batch_size,
        fixed=fixed,
        memory_bytes=PLENTY,
        capped=False,
        expandable=True,
        complete=complete,
        packed=pack_events([Event(*event) for event in events]),
    )


def replay(trace: Trace, batch_size: int | None = None, *, memory_bytes: int, others: Sequence[Trace] = ()) -> Replay:
    memory = Memory(memory_bytes, expandable=trace.expandable, capped=trace.capped)
    return Program(trace, *others).replay(batch_size or trace.batch_size, memory)


def allocated(trace: Trace, batch_size: int, *others: Trace) -> int:
    return replay(trace, batch_size, memory_bytes=PLENTY, others=others).peak_allocated_bytes


@pytest.mark.parametrize("recording", RECORDINGS, ids=str)
def test_replay_of_recorded_trial_has_its_peaks_and_fits_if_it_passed(recording):
    replayed = replay(recording.trace, memory_bytes=recording.trace.memory_bytes)
    *_, last = recording.trace.events()

    assert abs(replayed.peak_reserved_bytes - recording.peak_reserved_bytes) <= 2 * MIB
    assert abs(replayed.peak_allocated_bytes - recording.peak_allocated_bytes) <= 2 * MIB
    assert (last.kind == "refused") == (not recording.trace.complete)
    assert replayed.fits == recording.trace.complete


def test_the_recordings_are_of_every_kind():
    assert {(recording.trace.capped, recording.trace.expandable) for recording in PASSED} == {
        (capped, expandable) for capped in (True, False) for expandable in (True, False)
    }
    assert {recording.model for recording in FAILED} == {"resnet50", "efficientnet_b0", "swin_t"}
    assert any(event.kind == "refused" for recording in PASSED for event in recording.trace.events())
    assert all(len(recording.trace.packed) < 1000 for recording in RECORDINGS)


@pytest.mark.parametrize("recording", PASSED, ids=str)
def test_replay_is_right_within_2_mib_of_recorded_peak(recording):
    assert right_about(recording.trace, recording.peak_reserved_bytes)
    assert not right_about(recording.trace, recording.peak_reserved_bytes + 2 * MIB + 1)
    assert not right_about(recording.trace, recording.peak_reserved_bytes - 2 * MIB - 1)


@pytest.mark.parametrize("recording", FAILED, ids=str)
def test_the_model_is_not_right_about_a_trial_that_did_not_fit(recording):
    assert not right_about(recording.trace, recording.peak_reserved_bytes)


@pytest.mark.parametrize(
    ("model", "limit_gib", "edge"), [("resnet50", 8, 984), ("efficientnet_b0", 8, 940), ("efficientnet_b0", 24, 3002)]
)
def test_the_edge_is_forecast_to_1_percent_from_one_small_batch(model, limit_gib, edge):
    recorded = next(each.trace for each in PASSED if each.model == model and each.trace.batch_size == 61)
    forecast = Forecast([recorded], Memory(limit_gib * GIB, capped=True))

    def ask(batch_size):
        return None if forecast.fits(batch_size) else "memory"

    found = find_edge(ask, ask, granularity=1, max_batch=2**31 - 1)

    assert not recorded.capped
    assert found.largest_batch == pytest.approx(edge, rel=0.01)


@given(per_sample=st.integers(1, 50), batch_size=st.integers(1, 500), forecast=st.integers(1, 5_000))
def test_request_divisible_by_batch_size_scales_with_it(per_sample, batch_size, forecast):
    one = trace(("allocate", batch_size * per_sample * MIB), batch_size=batch_size)

    assert allocated(one, forecast) == forecast * per_sample * MIB


@given(per_sample=st.integers(1, 50), batch_size=st.integers(1, 500), forecast=st.integers(1, 5_000))
def test_request_made_before_the_batch_does_not_scale(per_sample, batch_size, forecast):
    weights, activations = 3 * batch_size * MIB, batch_size * per_sample * MIB
    one = trace(("allocate", weights), ("allocate", activations), batch_size=batch_size, fixed=1)

    assert allocated(one, forecast) == weights + forecast * per_sample * MIB


def test_indivisible_request_stays_constant_unless_it_is_a_workspace():
    odd = 7 * MIB

    assert allocated(trace(("allocate", odd)), 100) == odd
    assert allocated(trace(("allocate", odd), ("allocate", MIB), ("release", 0)), 100) == odd + MIB
    assert allocated(trace(("allocate", odd), ("release", 0)), 100) == 10 * odd


def test_request_equal_at_another_batch_size_stays_constant():
    one, other = (trace(("allocate", 100 * MIB), batch_size=batch_size) for batch_size in (10, 20))

    assert allocated(one, 30) == 300 * MIB
    assert allocated(one, 30, other) == 100 * MIB


def test_between_batch_sizes_near_each_other_the_rest_follows_a_line():
    one, other = (trace(("allocate", (15 + each) * MIB), batch_size=each) for each in (100, 83))

    assert allocated(one, 120) == 115 * MIB
    assert allocated(one, 120, other) == 135 * MIB
    assert allocated(other, 40, one) == 55 * MIB


def test_falling_or_negative_line_is_not_followed():
    def at(batch_size, mib):
        return trace(("allocate", mib * MIB), batch_size=batch_size)

    falls, rises_too_fast = at(83, 150), at(83, 50)
    from_nothing = at(99, 100)  # the line is 1 MiB a sample and 1 MiB

    assert allocated(at(100, 101), 200, falls) == 101 * MIB
    assert allocated(at(100, 101), 200, rises_too_fast) == 101 * MIB
    assert allocated(at(100, 101), 200, from_nothing) == 201 * MIB


def workspace(batch_size, mib):
    """Return a trace of one workspace."""
    return trace(("allocate", int(mib * MIB)), ("release", 0), batch_size=batch_size)


def test_workspaces_within_factor_two_of_batch_size_follow_a_line():
    assert allocated(workspace(100, 101), 1000, workspace(50, 51)) == 1001 * MIB
    assert allocated(workspace(100, 101), 1000, workspace(49, 51)) == 1010 * MIB  # 101 is within 5 % of 100 / 49 x 51
    assert allocated(workspace(100, 101), 1000, workspace(10, 50)) == 101 * MIB


def test_workspace_follows_distant_batch_size_within_5_percent():
    one = workspace(100, 101)

    assert allocated(one, 200, workspace(10, 10.1 * 1.04)) == 202 * MIB
    assert allocated(one, 200, workspace(10, 10.1 * 1.06)) == 101 * MIB
    assert allocated(one, 200, workspace(10, 10.1 / 1.06)) == 101 * MIB
    assert allocated(one, 200, workspace(10, 1.01)) == 404 * MIB


@given(power=st.sampled_from([1, 2, 3]), near=st.integers(2, 60), far=st.integers(61, 1000), asked=st.integers(1, 3000))
def test_power_law_of_batch_size_is_found_from_two_traces(power, near, far, asked):
    one, other = (trace(("allocate", 512 * each**power), batch_size=each) for each in (far, near))

    assert allocated(one, asked, other) == 512 * asked**power


@given(
    power=st.sampled_from([1, 2, 3]),
    padding=st.sampled_from([8, 32, 64, 128, 256]),
    pair=st.sampled_from([(1100, 13), (13, 1100)]),
    asked=st.integers(1, 10_000),
)
def test_program_of_a_padded_batch_size_follows_its_power(power, padding, pair, asked):
    def size(batch_size):
        return 512 * (-(-batch_size // padding) * padding) ** power

    one, other = (trace(("allocate", size(each)), batch_size=each) for each in pair)

    assert allocated(one, asked, other) == size(asked)


def test_program_of_a_padded_batch_size_learns_the_padding_from_all_traces():
    def at(batch_size):
        return trace(("allocate", MIB * (-(-batch_size // 64) * 64)), batch_size=batch_size)

    asked = 1345
    assert allocated(at(1344), asked, at(1317)) == 1344 * MIB  # both are equal
    assert allocated(at(1344), asked, at(1317), at(976)) == 1408 * MIB
    assert allocated(at(1344), asked, at(960), at(13)) == 1408 * MIB  # 960 and 1344 are multiples of 64
    assert allocated(at(1344), asked, at(960)) == 1345 * MIB


def test_program_ignores_a_farther_trace_for_a_request_that_the_nearest_lacks():
    one, farther = (trace(("allocate", 100 * MIB), batch_size=each) for each in (10, 2))
    nearest = trace(("outside", 0), batch_size=9)

    assert allocated(one, 20, nearest, farther) == 200 * MIB
    assert allocated(one, 20, farther) == 100 * MIB


@pytest.mark.parametrize("pair", [(976, 488), (976, 61), (15616, 976), (488, 976), (61, 976), (976, 489)])
def test_request_with_fixed_part_follows_line_from_any_two_traces(pair):
    one, other = (trace(("allocate", 1_300_000 * each + 77_000_000), batch_size=each) for each in pair)

    assert allocated(one, 5000, other) == pytest.approx(1_300_000 * 5000 + 77_000_000, abs=512)


@pytest.mark.parametrize("pair", [(976, 61), (122, 61), (61, 976)])
def test_request_per_sample_may_grow_with_batch_size(pair):
    one, other = (trace(("allocate", 40_960 * each + 64 * each**2), batch_size=each) for each in pair)

    assert allocated(one, 5000, other) == pytest.approx(40_960 * 5000 + 64 * 5000**2, abs=512)


def test_square_is_not_a_line_even_at_prime_batch_size():
    assert allocated(trace(("allocate", 61 * 61 * 1024), batch_size=61), 1000) == pytest.approx(
        1024 * 1000**2, rel=0.01
    )
    assert allocated(trace(("allocate", 64 * 64 * MIB), batch_size=64), 32) == 32 * 64 * MIB


def test_other_tensors_at_the_same_place_are_not_followed():
    one, other = (trace(("allocate", size), batch_size=each) for each, size in ((61, 7 * MIB), (976, 7 * MIB * 16**4)))

    assert allocated(one, 122, other) == 7 * MIB


def test_new_workspace_follows_the_batch_and_lasting_memory_stays():
    other = trace(("allocate", 3 * MIB), batch_size=20, fixed=1)
    one = trace(("allocate", 3 * MIB), ("allocate", 7 * MIB), ("release", 1), ("allocate", 9 * MIB), fixed=1)

    assert allocated(one, 20, other) == (3 + 14) * MIB
    assert allocated(one, 10, other) == (3 + 9) * MIB


def test_a_workspace_there_is_no_memory_for_is_done_without():
    work = [("allocate", 20 * MIB), ("allocate", 80 * MIB), ("release", 1), ("allocate", 20 * MIB)]
    held = [("allocate", 20 * MIB), ("allocate", 80 * MIB), ("allocate", 20 * MIB), ("release", 1)]

    assert replay(trace(*work), memory_bytes=100 * MIB) == Replay(True, 100 * MIB, 100 * MIB)
    assert replay(trace(*work), memory_bytes=99 * MIB) == Replay(True, 40 * MIB, 40 * MIB)
    assert replay(trace(*work), memory_bytes=39 * MIB).fits is False
    assert replay(trace(*held), memory_bytes=119 * MIB).fits is False


def test_refused_request_of_a_continuing_trial_may_be_refused_again():
    events = [("allocate", 20 * MIB), ("refused", 80 * MIB), ("allocate", 20 * MIB)]

    assert replay(trace(*events), memory_bytes=40 * MIB).fits
    assert replay(trace(*events[:2]), memory_bytes=40 * MIB).fits
    assert not replay(trace(*events[:2], complete=False), memory_bytes=40 * MIB).fits
    assert replay(trace(*events[:2], complete=False), memory_bytes=100 * MIB).fits
    assert replay(trace(*events[:2], complete=False), 5, memory_bytes=60 * MIB).fits
    assert not replay(trace(*events[:2], ("outside", 0), complete=False), memory_bytes=40 * MIB).fits
    assert replay(trace(*events, ("refused", 40 * MIB), complete=False), memory_bytes=80 * MIB).fits


def test_memory_outside_the_allocator_is_unavailable_to_it():
    before = trace(("outside", 100 * MIB), ("allocate", 20 * MIB))
    after = trace(("allocate", 20 * MIB), ("outside", 100 * MIB))
    between = trace(("allocate", 20 * MIB), ("release", 0), ("outside", 100 * MIB), ("outside", 50 * MIB))

    for one in (before, after, between):
        assert replay(one, memory_bytes=120 * MIB).fits
        assert not replay(one, memory_bytes=120 * MIB - 1).fits


def test_memory_that_is_given_back_outside_is_there_again():
    events = [("outside", 100 * MIB), ("outside", 60 * MIB), ("allocate", 60 * MIB)]

    assert replay(trace(*events), memory_bytes=120 * MIB).fits


def test_nearer_failed_trial_can_only_turn_a_forecast_to_no():
    passed = trace(("allocate", 10 * 20 * MIB), batch_size=10)
    failed = trace(("allocate", 100 * 20 * MIB), ("refused", 4_000 * MIB), batch_size=100, complete=False)
    memory = Memory(5_000 * MIB, expandable=True)

    alone, both = Forecast([passed], memory), Forecast([failed, passed], memory)

    assert [alone.fits(batch_size) for batch_size in (10, 31, 80, 90, 100, 250, 251)] == [True] * 6 + [False]
    assert [both.fits(batch_size) for batch_size in (10, 31, 80, 90, 100, 250, 251)] == [True] * 3 + [False] * 4


def test_nearer_failed_trial_does_not_replace_a_passed_one():
    passed = trace(("allocate", 10 * 20 * MIB), batch_size=10)
    failed = trace(("refused", 1_000 * MIB), batch_size=100, complete=False)
    forecast = Forecast([passed, failed], Memory(1_500 * MIB, expandable=True))

    assert forecast.fits(75)
    assert not forecast.fits(76)


@pytest.mark.parametrize("large_first", [True, False])
def test_nearest_passed_trial_by_ratio_is_used(large_first):
    small = trace(("allocate", 10 * 20 * MIB), batch_size=10)
    large = trace(("allocate", 100 * 20 * MIB), ("allocate", 100 * 20 * MIB), batch_size=100)
    forecast = Forecast([large, small] if large_first else [small, large], Memory(1_000 * MIB, expandable=True))

    assert [forecast.fits(batch_size) for batch_size in (25, 26, 31, 32, 50)] == [True] * 3 + [False] * 2


@st.composite
def events(draw):
    """Draw events in which every release follows its allocation."""
    drawn, made = [], 0
    for kind in draw(st.lists(st.sampled_from(["allocate", "release", "refused", "outside"]))):
        if kind != "release" or made:
            drawn.append(Event(kind, draw(st.integers(0, made - 1 if kind == "release" else 2**50))))
        made += kind == "allocate"
    return drawn


@given(events())
def test_events_are_read_as_they_were_packed_and_written(events):
    assert list(trace(*events).events()) == events
    assert msgspec.json.decode(msgspec.json.encode(trace(*events)), type=Trace) == trace(*events)


@given(st.binary())
@example(b"")
@example(b"rubbish")
@example(zlib.compress(b"12345"))
@example(zlib.compress(b"no number"))
@example(pack_events([Event("allocate", 512)])[:-1])
def test_bytes_that_are_no_events_are_no_trace(garbage):
    damaged = replace(trace(("allocate", 512)), packed=garbage)

    with pytest.raises(ValueError, match="a trace cannot be read"):
        list(damaged.events())
    with pytest.raises(ValueError, match="a trace cannot be read"):
        Program(damaged)
    assert not readable(damaged)
    assert not right_about(damaged, 0)


def test_the_same_steps_again_and_again_take_few_bytes():
    steps = []
    for number in range(5_000):
        steps += [Event("allocate", 512 * (number % 100)), Event("release", number)]

    assert list(trace(*steps).events()) == steps
    assert len(pack_events(steps)) < len(steps) / 10
    assert len(pack_events(steps)) < 4 * len(pack_events(steps[:200]))


def test_overlong_trace_is_not_unpacked():
    bomb = zlib.compress(bytes(8 * (MOST_EVENTS + 1)))

    with pytest.raises(ValueError, match="longer"):
        list(replace(trace(("allocate", 512)), packed=bomb).events())


def test_trace_that_releases_what_it_never_requested_is_not_used():
    edited = replace(trace(("allocate", 512)), packed=zlib.compress(bytes([1] + 7 * [0])))

    assert not readable(edited)
    assert not right_about(edited, 2**21)
