"""Comparisons: verdicts of faster, slower and same, and rows that are not compared."""

import random

import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import CPU_CAN, example

from tputfind.analysis.compare import Judgement, compare
from tputfind.errors import BadRequest
from tputfind.record.identity import work_key
from tputfind.record.record import Edge, Failure, Health, Row, Timing, Trial
from tputfind.record.types import METHOD
from tputfind.report.renderers.markdown import render_markdown
from tputfind.report.views.compare import document
from tputfind.stats import ratio_interval


def row(batch, *processes, health=None):
    """Return a row whose processes took these times for each of their batches."""
    return Row(batch_size=batch, timings=tuple(Timing(device_ms=tuple(spans), health=health) for spans in processes))


def record(*rows, **changes):
    return replace(example(), rows=rows, edge=None, **changes)


def steady(batch, ms, spread=0.0005):
    """Return a row of three processes that differ slightly."""
    return row(batch, *([ms * factor] * 20 for factor in (1 - spread, 1, 1 + spread)))


def test_rows_within_tolerance_are_same_and_beyond_differ():
    old = record(steady(1, 10), steady(8, 20), steady(32, 40))
    new = record(steady(1, 10.02), steady(8, 21), steady(32, 38))

    found = compare(old, new)

    assert [one.verdict for one in found.rows] == ["same", "slower", "faster"]
    assert [round(one.ratio, 3) for one in found.rows] == [0.998, 0.952, 1.053]
    assert found.verdict == "faster"
    assert [one.new_batch for one in found.slower_than(0.03)] == [8]
    assert found.slower_than(0.06) == []


def test_compare_row_of_one_process_has_no_interval_and_leaves_other_rows():
    spec = replace(example().spec, processes=None)
    beside = replace(row(2, [20.0] * 50), ended_by="beside")
    more, less = (record(*rows, spec=spec) for rows in ((beside, steady(8, 20)), (steady(8, 20),)))
    found = compare(more, more)

    assert (found.rows[0].verdict, found.rows[0].old_share) == ("ambiguous", None)
    assert found.rows[1] == compare(less, less).rows[0]
    assert "~100" in render_markdown(document([found])).decode()


def test_the_fastest_rows_are_compared_though_their_batches_differ():
    found = compare(record(steady(8, 20), steady(16, 50)), record(steady(8, 30), steady(16, 40)))

    assert (found.best.old_batch, found.best.new_batch) == (8, 16)
    assert (found.verdict, found.best.ratio) == ("same", pytest.approx(1.0, rel=1e-3))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dtype": "bf16"}, "dtype fp16 and bf16"),
        ({"dtype": "bf16", "phase": "train"}, "phase infer and train"),
        ({"transfer": "both"}, "transfer none and both"),
        ({"model": "resnet101"}, "model resnet50 and resnet101"),
    ],
)
def test_another_job_is_refused_unless_forced_and_then_named(change, named):
    old = record(steady(8, 20))
    new = replace(old, spec=replace(old.spec, **change))

    with pytest.raises(BadRequest, match=rf"{named}.*\(--force"):
        compare(old, new)
    assert named in compare(old, new, force=True).unlike


@pytest.mark.parametrize(
    ("environment", "fields", "named"),
    [
        ({"device_name": "NVIDIA L4"}, {}, "NVIDIA L4"),
        ({"allocator_conf": "expandable_segments:True"}, {}, "expandable_segments:True"),
        ({}, {"input_shape": "3x64x64"}, "input 3x224x224 and 3x64x64"),
        ({}, {"method": METHOD + 1}, "method"),
    ],
)
def test_another_device_allocator_shape_or_method_is_refused(environment, fields, named):
    old = record(steady(8, 20))

    with pytest.raises(BadRequest, match=named):
        compare(old, replace(old, environment=replace(old.environment, **environment), **fields))


def test_number_of_gpus_and_their_names_are_the_same_job():
    def on(**spec):
        base = record(steady(8, 20))
        return replace(base, spec=replace(base.spec, phase="train", dtype="bf16", parallel="ddp", **spec))

    two, named = on(gpus=2), on(device="cuda:0,cuda:1")

    assert compare(two, named).verdict == "same"
    assert work_key(two) == work_key(named)
    with pytest.raises(BadRequest, match="gpus 2 and 3"):
        compare(two, on(device="cuda:0,cuda:1,cuda:2"))


@pytest.mark.parametrize(
    ("before", "after", "name", "differs"),
    [
        (
            "/a/mine.py:factory",
            "/b/c/mine.py:factory",
            "mine.py:factory",
            "the file that the model or its weights are made by",
        ),
        ("Net (live)", "Net (live)", "Net (live)", "the bytes of the live object"),
    ],
)
def test_compare_model_in_other_checkout_is_same_and_changes_are_reported(before, after, name, differs):
    old = record(steady(8, 20), source_sha256="a")
    here, there = (replace(old.spec, model=model) for model in (before, after))

    found = compare(replace(old, spec=here), replace(old, spec=there, source_sha256="b"))

    assert (found.model, found.verdict, found.differs) == (name, "same", (differs,))


def test_compare_other_mode_layout_or_version_is_reported():
    old = record(steady(8, 20))
    new = replace(
        old, spec=replace(old.spec, layout="nhwc", mode="compile"), environment=replace(old.environment, torch="9.9")
    )

    differs = compare(old, new).differs

    assert "layout nchw and nhwc" in differs
    assert "mode eager and compile" in differs
    assert f"torch {old.environment.torch} and 9.9" in differs


def at(mhz, **slowed):
    """Return a record at this SM clock, with the fractions of the time in which it was reduced by reason."""
    health = Health(readings=5, sm_clock_mhz=mhz, slowed=slowed)
    return record(row(8, *[[20.0] * 20, [20.01] * 20], health=health))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (at(1900, power_cap=0.5), at(1200, hardware_thermal=0.5), "throttled in NEW: hardware thermal"),
        (at(1900, hardware_thermal=0.011), at(1900, hardware_thermal=0.0), "throttled in OLD: hardware thermal"),
        (at(1900, hardware_thermal=0.0099), at(1900, hardware_thermal=0.0099), ""),
        (at(1900, power_cap=0.5), at(1700, power_cap=0.5), "SM clock 1900 and 1700 MHz at the power limit"),
        (at(1900, power_cap=0.5), at(1700), "SM clock 1900 and 1700 MHz at the power limit"),
        (at(1900), at(1700, power_cap=0.5), "SM clock 1900 and 1700 MHz at the power limit"),
        (at(1900), at(1870), ""),
        (at(1900), at(1852), "SM clock 1900 and 1852 MHz"),
        (at(1852), at(1900), "SM clock 1852 and 1900 MHz"),
        (at(1900), at(None), ""),
        (at(None), at(1900), ""),
    ],
)
def test_clocks_differing_by_2_percent_are_reported_and_other_throttling_not_compared(old, new, reason):
    found, throttled = compare(old, new), reason.startswith("throttled")

    assert (found.verdict, found.best.reason) == ("not_comparable" if throttled else "same", reason)
    assert (found.best.low is None, found.best.high is None) == (throttled, throttled)


def test_a_tolerance_that_no_figures_keep_is_refused():
    old = record(steady(8, 20))

    assert compare(old, old, tolerance=0.0029).tolerance == 0.0029
    for tolerance in (-1, 0, 0.0028, 1):
        with pytest.raises(BadRequest, match=r"tolerance of \S+ is not above 0\.28%"):
            compare(old, old, tolerance=tolerance)


def test_processes_of_two_paces_have_no_interval_that_could_be_printed():
    old = record(*(row(2**n, [1.0] * 20, [10.0] * 20) for n in range(12)))

    found = compare(old, old)

    assert {one.verdict for one in (found.best, *found.rows)} == {"ambiguous"}
    assert found.rows[0].reason == "processes differ too much to tell"


def test_the_fastest_are_of_the_batch_sizes_that_both_have():
    found = compare(record(steady(1, 4), steady(256, 20)), record(steady(1, 4)))

    assert (found.best.old_batch, found.best.new_batch, found.verdict) == (1, 1, "same")
    assert "only OLD has batch 256" in found.differs


def test_inputs_and_threads_of_a_cpu_make_it_another_job():
    old = record(steady(8, 20))
    cpu = replace(old.environment, device="cpu", can=CPU_CAN, torch_threads=1)
    more = replace(cpu, torch_threads=64)

    with pytest.raises(BadRequest, match="threads 1 and 64"):
        compare(replace(old, environment=cpu), replace(old, environment=more))
    assert compare(old, replace(old, environment=replace(old.environment, torch_threads=64))).verdict == "same"


@pytest.mark.parametrize(
    ("one", "other"),
    [("max_split_size_mb:128,expandable_segments:False", "max_split_size_mb:128"), ("a:1,b:2", "b:2, a:1"), (None, "")],
)
def test_settings_of_the_allocator_are_the_same_in_any_order(one, other):
    old = record(steady(8, 20))
    here, there = (replace(old, environment=replace(old.environment, allocator_conf=conf)) for conf in (one, other))

    assert compare(here, there).verdict == "same"


def judged(ratio, low, high):
    return Judgement(old_batch=8, new_batch=8, ratio=ratio, low=low, high=high, verdict="ambiguous")


def test_slower_fastest_rows_of_different_batches_are_reported():
    found = compare(record(steady(8, 20)), record(steady(16, 80)))

    assert found.slower_than(0.03) == [found.best]
    assert found.slower_than(0.6) == []
    assert compare(record(), record()).slower_than(0.03) == []


@pytest.mark.parametrize(
    ("ratio", "low", "high", "slower", "may_be"),
    [
        (0.9, 0.85, 0.95, True, True),
        (0.9, 0.85, 1.0, False, True),
        (0.97, 0.96, 0.98, False, True),  # by exactly the fraction
        (0.98, 0.97, 0.99, False, False),
        (0.99, 0.9, 1.1, False, True),
        (1.5, 1.4, 1.6, False, False),
        (0.9, None, None, False, True),
        (None, None, None, False, True),
    ],
)
def test_slower_by_3_percent_is_certain_possible_or_excluded(ratio, low, high, slower, may_be):
    one = judged(ratio, low, high)

    assert one.slower_than(1 - 0.97) is slower
    assert one.may_be_slower_than(1 - 0.97) is may_be


def test_rows_beyond_the_largest_batch_of_the_new_record_are_lost():
    def up_to(largest, *rows, limited_by="memory", **changes):
        edge = Edge(largest_batch=largest, limited_by=limited_by, fails_at=largest + 1)
        return replace(record(*rows), edge=edge, **changes)

    failed = Row(batch_size=32, failure=Failure(kind="out_of_memory", message="no"))
    old = up_to(64, steady(64, 80), steady(16, 30), steady(8, 20), failed)
    found = compare(old, up_to(15, steady(8, 20)))

    assert [(one.old_batch, one.lost, one.new_per_s) for one in found.rows] == [
        (8, False, pytest.approx(400)),
        (16, True, None),
        (64, True, None),
    ]
    assert found.rows[1].old_per_s == pytest.approx(16 / 0.030)
    assert found.rows[1].reason == "beyond the largest batch of NEW, 15 (memory)"
    assert found.slower_than(0.5) == [found.rows[1], found.rows[2]]

    tried = Row(batch_size=64, failure=Failure(kind="died", message="no"))
    for new in (
        up_to(15, steady(8, 20), limited_by="cap"),
        up_to(15, steady(8, 20), limited_by="latency"),
        up_to(64, steady(8, 20)),
        record(steady(8, 20)),
    ):
        assert [one.old_batch for one in compare(old, new).rows] == [8]
    assert [one.reason for one in compare(old, up_to(16, steady(8, 20), tried)).rows if one.lost] == ["died in NEW"]


@pytest.mark.parametrize(
    ("held_gib", "changes", "reason"),
    [
        (12, {}, "NEW had 12.0 GiB of memory, OLD 24.0 GiB"),
        (0, {"memory_limit_bytes": 2**30}, "NEW had 1.0 GiB of memory, OLD 24.0 GiB"),
        (0, {"steady": False}, "other processes took or freed memory in NEW"),
        (0.1, {}, None),
    ],
)
def test_batch_is_lost_only_if_new_had_as_much_memory(held_gib, changes, reason):
    full, held_bytes = Failure(kind="out_of_memory", message="no"), int(held_gib * 2**30)
    above = Trial(batch_size=16, failure=full, memory_of_others_bytes=held_bytes)
    failed = Row(batch_size=64, failure=full, memory_of_others_bytes=held_bytes)
    edge = Edge(largest_batch=15, limited_by="memory", fails_at=16, **changes)
    old = record(steady(8, 20), steady(64, 80))
    beyond = replace(record(steady(8, 20), trials=(above,)), edge=edge)

    for new in (beyond, replace(beyond, rows=(*beyond.rows, failed))):
        found = compare(old, new)
        row = found.rows[-1]
        assert (row.lost, row.verdict) == (reason is None, "not_comparable")
        assert reason in (None, row.reason)
        assert reason is None or found.slower_than(0.03) == []


def test_batch_that_fitted_in_less_memory_is_lost():
    full = Failure(kind="out_of_memory", message="no")
    failed = Row(batch_size=64, failure=full, memory_of_others_bytes=2**30)
    old = record(steady(8, 20), replace(steady(64, 80), peak_reserved_bytes=8 * 2**30))
    new = record(steady(8, 20), failed)

    assert {one.old_batch for one in compare(old, new).slower_than(0.03)} == {64}


def test_batch_beyond_index_limit_is_lost_with_less_memory():
    edge = Edge(largest_batch=15, limited_by="index", fails_at=16, memory_limit_bytes=2**30)
    new = replace(record(steady(8, 20)), edge=edge)

    assert compare(record(steady(8, 20), steady(64, 80)), new).rows[-1].lost


def test_batch_out_of_less_free_host_memory_is_not_lost():
    cpu = replace(example().environment, device="cpu", can=CPU_CAN)
    old = record(steady(64, 80), environment=cpu)
    failed = Row(batch_size=64, failure=Failure(kind="out_of_memory", message="no"))
    new = record(failed, environment=replace(cpu, memory_free_bytes=2**33))

    (row,) = compare(old, new).rows
    assert (row.lost, row.reason) == (False, "NEW had 8.0 GiB of memory, OLD 23.0 GiB")


@pytest.mark.parametrize(
    ("ratio", "tolerance", "verdict"),
    [
        (1.0068, 0.01, "same"),
        (1.0075, 0.01, "faster"),
        (1 / 1.0068, 0.01, "same"),
        (1 / 1.0075, 0.01, "slower"),
        (1.0012, 0.003, "ambiguous"),
        (1.01, 0.02, "same"),
    ],
)
def test_rates_that_repeat_to_two_permille_are_the_same_within_the_tolerance(ratio, tolerance, verdict):
    """If processes do not differ, the ratio has an uncertainty of 0.2 % (that of each rate) times the root of 2."""
    old, new = (record(row(8, *[[ms] * 20] * 3)) for ms in (20.0, 20.0 / ratio))

    assert compare(old, new, tolerance=tolerance).verdict == verdict
    if tolerance == 0.01:
        assert compare(old, new).verdict == verdict


def test_cut_short_record_and_unmatched_rows_are_reported():
    old, new = record(steady(8, 20), finished=None), record(steady(8, 20), steady(16, 30))

    assert compare(old, new).differs == ("OLD was cut short", "only NEW has batch 16")
    assert compare(new, old).differs == ("only OLD has batch 16", "NEW was cut short")


def test_weights_of_same_file_name_in_other_folders_are_same():
    old = record(steady(8, 20))
    here, there, other = (replace(old, spec=replace(old.spec, weights=name)) for name in ("/a/w.pt", "/b/w.pt", "v.pt"))

    assert compare(here, there).unlike == ()
    assert compare(old, here, force=True).unlike == ("weights random and w.pt",)
    assert compare(here, other, force=True).unlike == ("weights w.pt and v.pt",)


FAILED = Row(batch_size=16, failure=Failure(kind="out_of_memory", message="no"))


@pytest.mark.parametrize(
    ("before", "after", "lost", "reason"),
    [(steady(16, 40), FAILED, True, "out of memory in NEW"), (FAILED, steady(16, 40), False, "out of memory in OLD")],
)
def test_batch_failing_only_in_new_record_is_lost_and_counts_as_slower(before, after, lost, reason):
    found = compare(record(steady(8, 20), before), record(steady(8, 20), after))
    same, failed = found.rows

    assert [(one.old_batch, one.verdict) for one in found.rows] == [(8, "same"), (16, "not_comparable")]
    assert (same.lost, failed.lost, failed.reason, failed.ratio) == (False, lost, reason, None)
    assert found.slower_than(0.5) == ([failed] if lost else [])


def test_batch_failing_in_both_records_is_omitted():
    both = record(steady(8, 20), FAILED)

    assert [one.old_batch for one in compare(both, both).rows] == [8]
    assert compare(record(steady(8, 20)), record(FAILED)).best is None


def test_a_batch_that_is_lost_counts_though_the_host_set_its_pace():
    failed = Row(batch_size=8, failure=Failure(kind="died", message="no"))
    timings = tuple(Timing(device_ms=(20.0 * near,) * 20, enqueue_ms=(20.0,) * 20) for near in (0.999, 1, 1.001))
    found = compare(record(Row(batch_size=8, timings=timings)), record(failed))

    assert [(one.lost, one.host_bound) for one in found.slower_than(0.03)] == [(True, True)]


def test_half_widths_of_both_rates_are_given_if_available():
    found = compare(record(steady(8, 20)), record(steady(8, 20, spread=0.01))).best
    unknown = compare(record(steady(8, 20)), record(Row(batch_size=8))).rows[0]

    assert 0.002 < found.old_share < 0.01 < found.new_share
    assert (unknown.new_share, unknown.ratio, unknown.lost) == (None, None, False)


def test_row_host_bound_only_in_new_record_is_host_bound():
    timings = tuple(Timing(device_ms=(30.0 * near,) * 20, enqueue_ms=(30.0,) * 20) for near in (0.999, 1, 1.001))

    assert compare(record(steady(8, 20)), record(Row(batch_size=8, timings=timings))).best.host_bound
    assert not compare(record(steady(8, 20)), record(steady(8, 20))).best.host_bound


def test_a_model_of_a_library_goes_by_its_whole_name():
    old = record(steady(8, 20))
    one, other = (replace(old, spec=replace(old.spec, model=f"hf:{name}/vit")) for name in ("here", "there"))

    with pytest.raises(BadRequest, match="here/vit and hf:there/vit"):
        compare(one, other)


def test_reason_for_unjudged_rows_is_given():
    apart = compare(record(steady(8, 20)), record(steady(16, 40)))
    untimed = compare(record(steady(8, 20)), record(Row(batch_size=8)))
    one_process = compare(record(steady(8, 20)), record(row(8, [20.0] * 50)))

    assert apart.best.reason == "no batch size is in both"
    assert untimed.rows[0].reason == "not timed in NEW"
    assert one_process.rows[0].reason == "timed in one process: measure with --processes 3 or more"
    assert compare(record(steady(8, 20)), record(steady(8, 20))).best.reason == ""


spans = st.lists(st.lists(st.floats(5, 20), min_size=4, max_size=6).map(tuple), min_size=2, max_size=4)


@given(spans, spans)
def test_exchanging_the_two_gives_the_reciprocal(one, other):
    there, back = ratio_interval(one, other, 0.002), ratio_interval(other, one, 0.002)

    assert (there is None) == (back is None)
    if there is not None:
        assert there.low == pytest.approx(1 / back.high)
        assert there.high == pytest.approx(1 / back.low)
    forth = compare(record(row(8, *one)), record(row(8, *other)))
    back = compare(record(row(8, *other)), record(row(8, *one)))
    assert {forth.verdict, back.verdict} in ({"same"}, {"ambiguous"}, {"faster", "slower"})


@given(spans, st.floats(0.1, 10))
def test_a_record_against_itself_is_never_faster_or_slower(times, factor):
    old = record(row(8, *times))
    scaled = record(row(8, *[[factor * span for span in process] for process in times]))

    assert compare(old, old).verdict in ("same", "ambiguous")
    assert compare(scaled, scaled).verdict == compare(old, old).verdict


@given(st.integers(2, 6), st.integers(2, 6), st.floats(0.9, 0.99), st.integers(0, 10**6))
def test_the_interval_is_welchs_of_scipy_for_processes_of_one_length(first, second, confidence, seed):
    """Near 1 the logarithm of a ratio is the difference of the relative means."""
    rng = random.Random(seed)
    one = [[100 + rng.gauss(0, 1e-5)] * 3 for _ in range(first)]
    other = [[100 + rng.gauss(0, 2e-5)] * 3 for _ in range(second)]
    found = ratio_interval(one, other, 0.0, confidence)

    expected = scipy.stats.ttest_ind(
        [process[0] / 100 for process in one], [process[0] / 100 for process in other], equal_var=False
    )
    exact = expected.confidence_interval(confidence)
    assert abs(found.low + found.high - 2 - exact.low - exact.high) < 0.01 * (exact.high - exact.low)
    wider = (found.high - found.low) / (exact.high - exact.low)
    assert 0.999 <= wider <= 1.05  # fractional degrees of freedom are interpolated, on the safe side


@pytest.mark.parametrize("between", [0.0005, 0.005, 0.02, 0.05])
@pytest.mark.parametrize("rows", [1, 10])
def test_equal_simulated_runs_differ_in_at_most_7_percent(between, rows):
    rng = random.Random(20261123)
    runs, alarms, best, same = 400, 0, 0, 0

    def run():
        return record(*(row(2**n, *_processes(rng, 2**n, between)) for n in range(rows)))

    for _ in range(runs):
        found = compare(run(), run())
        alarms += any(one.verdict in ("faster", "slower") for one in found.rows)
        best += found.verdict in ("faster", "slower")
        same += found.verdict == "same"

    print(
        f"{rows} rows, processes differ by {between:.2%}: alarms of any row {alarms / runs:.3f}, "
        f"of the fastest {best / runs:.3f}; the fastest is the same in {same / runs:.3f}"
    )
    assert alarms / runs <= 0.07
    assert best / runs <= 0.07


def _processes(rng, batch, between):
    """Return three processes of twenty batches each, with variation between and within processes."""
    for _ in range(3):
        mean = batch**0.8 * rng.gauss(1, between)
        yield [abs(mean * rng.gauss(1, 0.01)) for _ in range(20)]


@pytest.mark.parametrize(("input_shape", "recipe"), [("3x224x224", "fp16 nchw eager"), ("128", "fp16 eager")])
def test_comparison_names_the_plain_layout_of_images_only(input_shape, recipe):
    record = replace(example(), input_shape=input_shape)

    assert compare(record, record).recipe == recipe
