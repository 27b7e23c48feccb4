"""The search on model shapes that it was not tuned for, on the simulated device."""

from functools import cache
from statistics import median

import pytest
from support.shapes import shapes
from support.simulated import Device, Process, Way, fits, measure, search

from tputfind.errors import NothingFits
from tputfind.search.replay import right_about

MEMORIES_GIB = (24, 141)
CLIMB = 3
"""Processes of a search in addition to those of the shape, to climb by 61, 976 and 15616."""
BY_FAMILY: dict[str, list[str]] = {}
for shape in shapes().values():
    BY_FAMILY.setdefault(shape.family, []).append(shape.name)
SOME = [names[0] for names in BY_FAMILY.values()]
TOO_SLOW = {
    *("endless", "endless, host", "slow past 2^32 elements", "hangs from 3000", "function 50 ms a sample"),
    *("slow steps", "diffusion 50 steps"),
}
"""Shapes whose trials may be killed because they take too long."""


@cache
def searched(name, memory_gib):
    device = Device(memory_gib, copies_inputs=True)
    return search(device, shapes()[name], most_s=None if name not in TOO_SLOW else 900.0), device


@pytest.mark.parametrize("memory_gib", MEMORIES_GIB)
@pytest.mark.parametrize(
    ("name", "most"),
    [
        *((f"pairwise b*b*{width}", 4) for width in (1, 8, 64, 512)),
        ("cube", 5),
        ("lstm 77 MB + 1.3 MB b", 12),
        ("lstm 900 MB + 50 kB b", 12),
        ("padded to 64, 2 MB", 9),
        ("padded to 64, 0.1 MB", 9),
        *((f"kernels that change {seed}", 18) for seed in range(4)),
        ("max 512", 3),
        ("kernel limit 4096", 5),
        ("function 2 ms a sample", 4),
    ],
)
def test_a_search_of_a_shape_takes_few_processes(name, most, memory_gib):
    found, device = searched(name, memory_gib)

    assert found.edge is not None, found.error
    assert device.processes <= most + CLIMB, [asked.batch_size for asked in device.asked]


def check_edge(name, memory_gib):
    shape = shapes()[name]
    found, device = searched(name, memory_gib)
    if found.edge is None:
        assert isinstance(found.error, NothingFits)
        assert fits(device, shape, shape.granularity) is not None
        return
    edge = found.edge
    outcomes = {asked.batch_size: asked.outcome for asked in device.asked}
    assert fits(device, shape, edge.largest_batch) is None
    assert outcomes[edge.largest_batch] == "fits"
    assert edge.fails_at == edge.largest_batch + shape.granularity
    assert outcomes[edge.fails_at] != "fits"
    assert fits(device, shape, edge.fails_at) == edge.limited_by


@pytest.mark.parametrize("memory_gib", MEMORIES_GIB)
@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in shapes() if name not in TOO_SLOW])
def test_search_of_every_shape_ends_at_edge_tried_on_both_sides(name, memory_gib):
    check_edge(name, memory_gib)


@pytest.mark.parametrize("name", SOME)
def test_search_of_some_shapes_ends_at_edge_tried_on_both_sides(name):
    check_edge(name, 24)


def test_trace_of_simulated_trial_is_trusted_by_forecasts():
    for name, shape in shapes().items():
        trial = Process(Device(80), shape, None, Way()).trial(60, 3, None, 1)
        assert trial.failure is None, name
        assert trial.peak_reserved_bytes is not None
        assert trial.trace is None if not shape.traced else right_about(trial.trace, trial.peak_reserved_bytes), name


def test_a_simulated_run_under_a_budget_ends_with_it():
    device = Device(24)

    found = measure(device, shapes()["linear resnet"], budget_s=60, start_s=8)

    assert found.record.rows
    assert found.record.wall_s <= 60
    assert device.asked[-1].at_s == pytest.approx(60, abs=5)


@pytest.mark.parametrize("name", ["no trace, 100 kB", "micro-batches", "no trace, host"])
def test_search_under_budget_starts_no_late_trial_and_finishes_started_one(name):
    device = Device(141, copies_inputs=True)
    start_s, budget_s = 8, 60
    last_start_s = start_s + 0.85 * (budget_s - start_s)
    last_end_s = last_start_s + 2 / 3 * (budget_s - last_start_s)

    measure(device, shapes()[name], budget_s=budget_s, start_s=start_s)

    trials = [asked for asked in device.asked if asked.what == "trial"]
    assert all(asked.at_s - asked.seconds <= last_start_s for asked in trials)
    usual_s = median(asked.seconds for asked in trials if asked.outcome == "fits")
    latest_s = min(last_start_s, budget_s - 2.5 * usual_s)  # a slow trial would leave no time for a row
    assert (trials[-1].at_s < latest_s) == (name == "micro-batches")  # no larger batch was expected to end in time
    assert trials[-1].at_s <= last_end_s + 1e-6
    assert any(asked.what == "row" for asked in device.asked)


def test_largest_batch_under_budget_was_run_though_rows_fail_that_trials_pass():
    device = Device(24, copies_inputs=True)

    found = measure(device, shapes()["pieces 1"], budget_s=60)

    assert found.edge.largest_batch in {asked.batch_size for asked in device.asked if asked.outcome == "fits"}
    assert {row.status for row in found.record.rows} > {"ok"}
