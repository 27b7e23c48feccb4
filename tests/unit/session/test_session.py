from math import inf

import pytest
from msgspec.structs import replace
from support.records import can_of, example, row
from support.searches import OUT_OF_MEMORY, SEARCHES

from tputfind.analysis.answers import answers
from tputfind.errors import DeviceInUse, ModelFailed, OutOfTime
from tputfind.processes.messages import Diagnosis
from tputfind.record.files import RecordFile
from tputfind.record.record import TRIAL_STEPS, Edge, Failure, Row, Trial
from tputfind.session import run, stopping
from tputfind.session.progress import Silent
from tputfind.session.session import RunsOtherwise, Session

SEARCHED = SEARCHES["densenet121 fp32 24GiB"]
SMALLER, LARGER = 1311, 1903
"""Forecast: the smaller does not fit, the larger does."""
EDGE = Edge(
    largest_batch=SEARCHED.edge,
    limited_by="memory",
    fails_at=SEARCHED.edge + 1,
    memory_limit_bytes=SEARCHED.limit_bytes,
)


class Oracle:
    """Answers trials, and records the questions."""

    memory_limit_bytes = SEARCHED.limit_bytes

    def __init__(self, fails, step_ms):
        self.asked = []
        self._fails = fails
        self._step_ms = step_ms

    def memory_of_others_bytes(self):
        return 0

    def seconds_left(self):
        return inf

    def diagnose(self, batch_size, failure):
        return Diagnosis()  # the model fails

    def try_batch(self, batch_size, passed, *, steps, memory_limit_bytes, taken):
        self.asked.append((batch_size, steps))
        self.told_of = taken
        return Trial(
            batch_size=batch_size,
            steps=steps,
            step_ms=self._step_ms,
            memory_limit_bytes=memory_limit_bytes,
            failure=OUT_OF_MEMORY if batch_size in self._fails else None,
        )


def looked(*fails, edge=EDGE, step_ms=100.0, taken=(), **options):
    """Return the record after trials around an edge, at which these batch sizes fail, and the trials."""
    spec = replace(example().spec, **{"soak": 0, "memory_limit_bytes": SEARCHED.limit_bytes, **options})
    record = replace(example(), spec=spec, trials=(*taken, *SEARCHED.taken()), edge=edge, safe=None, rows=())
    oracle = Oracle(fails, step_ms)
    session = Session(record, oracle, RecordFile(None, ""), Silent())
    session.probe_non_monotonic(edge)
    return session.record, oracle.asked


def test_resumed_run_uses_trials_of_its_record_for_timeouts():
    spec = replace(example().spec, memory_limit_bytes=SEARCHED.limit_bytes)
    record = replace(example(), spec=spec, trials=SEARCHED.taken(), rows=())
    oracle = Oracle([], 100.0)
    Session(record, oracle, RecordFile(None, ""), Silent()).try_batch(10**6)

    assert oracle.told_of == record.trials


def test_smaller_failing_and_larger_fitting_batches_are_tried_and_reported():
    record, asked = looked(SMALLER)

    assert asked == [(SMALLER, TRIAL_STEPS), (LARGER, TRIAL_STEPS), (LARGER, 20)]
    told = {notice.kind: (notice.batch_sizes, notice.seen) for notice in record.notices}
    assert told["smaller_batches_fail"] == ((SMALLER,), f"batch {SMALLER} ran out of memory, though 1663 fits")
    assert told["larger_batches_fit"] == ((LARGER,), f"batch {LARGER} ran 20 steps, though 1664 ran out of memory")


@pytest.mark.parametrize(
    ("fails", "asked", "told"),
    [
        ([], [(SMALLER, TRIAL_STEPS)], set()),  # the forecast of the smaller one was wrong
        ([SMALLER, LARGER], [(SMALLER, TRIAL_STEPS), (LARGER, TRIAL_STEPS)], {"smaller_batches_fail"}),
    ],
)
def test_larger_batch_is_reported_only_if_both_forecasts_were_right(fails, asked, told):
    record, tried = looked(*fails)

    assert tried == asked
    assert {"smaller_batches_fail", "larger_batches_fit"} & {notice.kind for notice in record.notices} == told
    assert not any(LARGER in notice.batch_sizes for notice in record.notices)


def at_edge(step_ms):
    return (Trial(batch_size=EDGE.largest_batch, step_ms=step_ms, memory_limit_bytes=SEARCHED.limit_bytes),)


def test_slow_steps_prevent_trials_around_edge_but_forecast_is_reported():
    record, asked = looked(SMALLER, taken=at_edge(2100.0), max_seconds=6.0)

    assert asked == []
    assert record.edge.smaller_forecast == SMALLER
    (told,) = [notice for notice in record.notices if notice.kind == "smaller_batches_fail"]
    assert told.seen == f"batch {SMALLER} is forecast not to fit, though 1663 fits"
    assert looked(SMALLER, taken=at_edge(1900.0), max_seconds=6.0)[1]
    assert looked(SMALLER, taken=at_edge(2100.0), max_seconds=None, batches=None, thorough=True)[1]


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"soak": 50}, [(SMALLER, TRIAL_STEPS), (LARGER, TRIAL_STEPS), (LARGER, TRIAL_STEPS + 50)]),
        ({"step_ms": 4000.0, "max_seconds": 60.0}, [(SMALLER, TRIAL_STEPS), (LARGER, TRIAL_STEPS)]),  # as a row does
        # No forecast explains these edges.
        ({"edge": replace(EDGE, limited_by="latency")}, []),
        ({"edge": replace(EDGE, largest_batch=0, fails_at=1)}, []),
        ({"edge": replace(EDGE, largest_batch=1600, fails_at=1601)}, []),  # rows failed though trials passed
        ({"search": "bisect"}, []),
    ],
)
def test_larger_batch_lasts_as_long_as_soaks_or_rows_at_explained_edges(options, asked):
    assert looked(SMALLER, **options)[1] == asked


class Timer:
    """Answers with the rows of one process, and records the batch sizes of each process."""

    memory_limit_bytes = None

    def __init__(self, spec, paces_ms, wider, fails):
        self.asked = []
        self._spec = spec
        self._paces_ms = paces_ms
        self._wider = wider
        self._fails = fails

    def memory_of_others_bytes(self):
        return 0

    def time_batches(self, batch_sizes, number, planned, passed, taken):
        assert planned == stopping.process_plan(self._spec, number)
        self.asked.append((number, tuple(batch_sizes)))
        for place, size in enumerate(batch_sizes):
            if self._fails(number, size, place == 0):
                yield Row(batch_size=size, failure=Failure(kind="died", message="it died"))
                return
            paces_ms = self._paces_ms if size in self._wider else self._paces_ms[:1]
            made = row(size, paces_ms[number % len(paces_ms)])
            yield replace(made, ended_by=None, seconds=1.0)


def timed(
    *sizes,
    listener=None,
    edge=None,
    device="cuda:0",
    paces_ms=(5.0,),
    wider=(1,),
    fails=lambda number, size, first: False,
    **asked,
):
    """Return a session after timing these batch sizes, and the batch sizes of its processes.

    Processes of ``wider`` sizes take the step times cyclically; other processes take the first one.
    """
    asked = {"batches": None, "processes": 3, "slo_ms": None, "soak": 0, **asked}
    spec = replace(example().spec, **asked)
    timer = Timer(spec, paces_ms, wider, fails)
    environment = replace(example().environment, device=device, can=can_of(device))
    found = {"rows": (), "edge": edge, "safe": None, "finished": None}
    record = replace(example(), spec=spec, environment=environment, **found)
    session = Session(record, timer, RecordFile(None, ""), listener or Silent())
    session.time_rows(sizes)
    return session, timer.asked


def test_on_a_card_each_process_times_all_rows_until_each_is_full():
    session, asked = timed(1, 2, 4)

    assert asked == [(0, (1, 2, 4)), (1, (1, 2, 4)), (2, (1, 2, 4))]
    assert [row.ended_by for row in session.record.rows] == ["full"] * 3


def test_on_a_card_only_rows_that_answers_rest_on_take_further_processes():
    session, asked = timed(1, 2, 4, paces_ms=(5.0, 5.01), wider=(4,), processes=None)
    session.finish()

    assert asked == [(0, (1, 2, 4)), (1, (4,))]
    assert [row.ended_by for row in session.record.rows] == ["beside", "beside", "alike"]


def test_resting_rows_are_reported_while_other_rows_take_more_processes():
    seen = []

    class Listener(Silent):
        def measured(self, record):
            seen.append([row.ended_by for row in record.rows])

    timed(1, 2, 4, paces_ms=(5.0, 5.01), wider=(4,), processes=None, listener=Listener())

    assert seen == [[None], [None] * 2, [None] * 3, ["beside", "beside", None], ["beside", "beside", "alike"]]


def test_first_host_process_of_a_row_times_no_other_row():
    """The host reports the peak of a whole process."""
    _, asked = timed(1, 2, 4, device="cpu")

    assert asked == [(0, (1,)), (0, (2,)), (0, (4,)), (1, (1, 2, 4)), (2, (1, 2, 4))]


def test_host_rows_under_budget_are_timed_from_the_largest_down():
    edge = Edge(largest_batch=256, limited_by="memory", fails_at=257)
    _, asked = timed(1, 2, 128, 256, device="cpu", edge=edge, budget_s=60.0, processes=1)

    assert asked == [(0, (256,)), (0, (128,)), (0, (2,)), (0, (1,))]


def test_failed_row_takes_no_further_process_and_wide_row_ends_by_time():
    wanted = {"max_noise": 0.03, "max_seconds": 6.0}
    session, asked = timed(1, 2, fails=lambda number, size, first: size == 2, paces_ms=(5.0, 5.5), **wanted)

    assert asked[:2] == [(0, (1, 2)), (0, (2,))]
    assert asked[2:] == [(number, (1,)) for number in range(1, 6)]  # one second each
    assert [(row.ended_by, row.status) for row in session.record.rows] == [("time", "ok"), (None, "died")]


def test_known_row_takes_no_further_process_with_an_unknown_row():
    session, asked = timed(1, 2, wider={2}, paces_ms=(5.0, 5.5), max_noise=0.03, max_seconds=6.0)

    assert asked == [(number, (1, 2) if number < 3 else (2,)) for number in range(6)]
    assert [row.ended_by for row in session.record.rows] == ["known", "time"]


def test_row_failing_after_other_rows_is_retried_first_in_its_process():
    session, asked = timed(1, 2, 4, fails=lambda number, size, first: size == 2 and not first)

    assert asked == [(number, sizes) for number in range(3) for sizes in ((1, 2, 4), (2, 4))]
    assert [row.status for row in session.record.rows] == ["ok"] * 3


def test_row_failing_in_later_process_fails_and_keeps_its_timings():
    session, asked = timed(1, 2, fails=lambda number, size, first: (number, size) == (1, 2))

    assert asked == [(0, (1, 2)), (1, (1, 2)), (1, (2,)), (2, (1,))]
    assert [(row.status, row.ended_by, len(row.timings)) for row in session.record.rows] == [
        ("ok", "full", 3),
        ("died", None, 1),
    ]


def test_time_rows_ends_after_the_round_in_which_the_edge_failed():
    edge = Edge(largest_batch=4, limited_by="memory", fails_at=5)
    session, asked = timed(1, 2, 4, edge=edge, fails=lambda number, size, first: size == 4)

    assert asked == [(0, (1, 2, 4)), (0, (4,))]
    assert [row.ended_by for row in session.record.rows] == [None] * 3


@pytest.mark.parametrize(("budget_s", "expected"), [(None, [None, None, "full"]), (60.0, ["budget", None, "full"])])
def test_unfinished_rows_at_end_of_budget_were_ended_by_budget(budget_s, expected):
    session, _ = timed(4, budget_s=budget_s)
    once = replace(row(1, 5.0), ended_by=None)
    failed = Row(batch_size=2, failure=Failure(kind="died", message="it died"))
    session.update(rows=(once, failed, *session.record.rows))
    session.finish()

    assert session.record.finished is not None
    assert [row.ended_by for row in session.record.rows] == expected


def session_of(*trials, rows=(), **options):
    """Return a session whose record holds these trials and rows."""
    spec = replace(example().spec, **{"soak": 0, "memory_limit_bytes": None, "headroom": None, **options})
    record = replace(example(), spec=spec, trials=trials, rows=rows, edge=None, safe=None)
    oracle = Oracle([], 100.0)
    oracle.memory_limit_bytes = None
    oracle.timed = []

    def time_batches(batch_sizes, *_):
        oracle.timed += batch_sizes
        yield row(batch_sizes[0], 5.0)

    oracle.time_batches = time_batches
    return Session(record, oracle, RecordFile(None, ""), Silent()), oracle


@pytest.mark.parametrize(
    ("granularity", "max_batch", "largest", "limited_by"),
    [
        (1, 100, 100, "cap"),
        (8, 100, 96, "cap"),
        (8, 104, 96, "cut_short"),
        (1, None, 2**31 - 1, "cap"),
        (8, None, 2**31 - 8, "cap"),
        (8, None, 96, "cut_short"),
    ],
)
def test_edge_so_far_at_last_multiple_below_max_batch_names_cap(granularity, max_batch, largest, limited_by):
    session, _ = session_of(Trial(batch_size=largest), granularity=granularity, max_batch=max_batch)

    found = session.edge_so_far()

    assert (found.largest_batch, found.limited_by, found.closed) == (largest, limited_by, limited_by == "cap")


def test_edge_so_far_counts_passed_and_failed_rows():
    failed = Row(batch_size=32, failure=OUT_OF_MEMORY)
    session, _ = session_of(Trial(batch_size=16), Trial(batch_size=32), rows=(row(24, 5.0), failed))

    found = session.edge_so_far()

    assert (found.largest_batch, found.fails_at, found.limited_by) == (24, 32, "memory")


def test_batch_that_passes_its_row_and_fails_its_soak_does_not_fit():
    trials = (
        *(Trial(batch_size=size) for size in (30, 32)),
        Trial(batch_size=33, failure=OUT_OF_MEMORY),
        Trial(batch_size=32, steps=TRIAL_STEPS + 50, failure=OUT_OF_MEMORY),
    )
    session, _ = session_of(*trials, rows=(row(30, 5.0), row(32, 5.0)), soak=50)

    found = session.edge_so_far()

    assert (found.largest_batch, found.fails_at, found.closed) == (30, 32, False)


@pytest.mark.parametrize(
    ("settings", "trials", "rows"),
    [
        ({"granularity": 2}, [60, 62], [4, 60]),
        ({"grad_mode": "no_grad"}, [], []),
        ({"granularity": 2, "grad_mode": "no_grad"}, [], []),
    ],
)
def test_found_granularity_keeps_the_batches_that_are_its_multiples(settings, trials, rows):
    taken = Trial(batch_size=60), Trial(batch_size=61), Trial(batch_size=62, failure=OUT_OF_MEMORY)
    session, oracle = session_of(*taken, rows=(row(4, 5.0), row(60, 5.0)))
    session.update(edge=Edge(largest_batch=61, limited_by="memory", fails_at=62))
    oracle.try_batch = lambda *_, **__: Trial(batch_size=1, failure=Failure(kind="error", message="more than 1 value"))
    oracle.diagnose = lambda *_: Diagnosis(**settings)

    with pytest.raises(RunsOtherwise):
        session.try_batch(1)

    found = session.record
    assert [one.batch_size for one in found.trials] == trials
    assert [one.batch_size for one in found.rows] == rows
    assert found.edge is None


def test_row_that_fails_while_others_hold_memory_is_timed_again():
    session, oracle = session_of(Trial(batch_size=32))
    oracle.memory_of_others_bytes = lambda: 5 * 2**30
    failed = Row(batch_size=32, failure=OUT_OF_MEMORY, memory_of_others_bytes=0)
    answers = iter([failed, replace(row(32, 5.0), memory_of_others_bytes=5 * 2**30)])
    oracle.time_batches = lambda *_: (one for one in [next(answers)])

    assert session.time_alone(32) is None
    assert next(answers, None) is None


def test_rows_above_an_edge_are_dropped_if_other_processes_took_memory_since():
    session, oracle = session_of(Trial(batch_size=32))
    session.update(rows=tuple(replace(row(size, 5.0), memory_of_others_bytes=0) for size in (16, 32, 64)))
    edge = Edge(largest_batch=32, limited_by="memory", fails_at=33)

    session.drop_outdated_rows(edge)
    assert [one.batch_size for one in session.record.rows] == [16, 32, 64]
    oracle.memory_of_others_bytes = lambda: 5 * 2**30
    session.drop_outdated_rows(edge)
    assert [one.batch_size for one in session.record.rows] == [16, 32]


def raise_device_in_use():
    raise DeviceInUse("other processes hold 1 GiB of the device")


def test_interrupted_record_is_saved_though_others_use_the_device():
    session, oracle = session_of(Trial(batch_size=16))
    oracle.memory_of_others_bytes = raise_device_in_use
    saved = []
    session._progress.measured = saved.append

    session.save_again()

    assert [record.trials for record in saved] == [(Trial(batch_size=16),)]


def test_error_at_the_end_of_the_budget_is_a_result(monkeypatch):
    class LateRunner(Oracle):
        def __init__(self, *_):
            super().__init__([], 100.0)

        memory_of_others_bytes = staticmethod(raise_device_in_use)

        def time_batches(self, *_):
            raise OutOfTime("--budget ended")

    monkeypatch.setattr(run, "TrialRunner", LateRunner)
    failed = Row(batch_size=32, failure=OUT_OF_MEMORY)
    edge = Edge(largest_batch=32, limited_by="memory", fails_at=33)
    record = replace(example(), rows=(failed,), edge=edge, trials=())

    measured = run.measure(record, None, RecordFile(None, ""), Silent(), first=(8, 16))

    assert isinstance(measured.ended_by, DeviceInUse)


def test_finish_after_edge_row_failed_returns_edge_that_ran():
    failed = Row(batch_size=32, failure=OUT_OF_MEMORY)
    session, _ = session_of(
        Trial(batch_size=32), Trial(batch_size=33, failure=OUT_OF_MEMORY), rows=(row(24, 5.0), failed)
    )
    session.update(edge=Edge(largest_batch=32, limited_by="memory", fails_at=33))

    session.finish()

    found = session.record.edge
    assert (found.largest_batch, found.fails_at, found.closed) == (24, 32, False)


@pytest.mark.parametrize(
    ("seconds", "worth"),
    [([2.0, 100.0], True), ([2.0, 148.0], True), ([2.0, 151.0], False), ([90.0, 90.0, 100.0], False)],
)
def test_is_worth_a_trial_allows_half_of_five_minutes_or_the_rest(seconds, worth):
    trials = [Trial(batch_size=size + 1, step_ms=1.0, seconds=each) for size, each in enumerate(seconds)]
    session, _ = session_of(*trials)

    assert session.is_worth_a_trial(len(seconds) + 1) == worth


@pytest.mark.parametrize(("left_s", "worth"), [(inf, True), (21.0, True), (19.0, False)])
def test_is_worth_a_trial_allows_what_a_budget_leaves(left_s, worth):
    session, oracle = session_of(Trial(batch_size=61, step_ms=1000.0, seconds=11.0))
    oracle.seconds_left = lambda: left_s

    assert session.is_worth_a_trial(4 * 61) == worth


def test_is_worth_a_trial_limits_linear_search_only_by_next_trial():
    many = [Trial(batch_size=size, step_ms=1.0, seconds=90.0) for size in range(1, 10)]
    counting, _ = session_of(*many, search="linear")
    slow, _ = session_of(*many, Trial(batch_size=10, step_ms=1.0, seconds=160.0), search="linear")

    assert counting.is_worth_a_trial(10)
    assert not slow.is_worth_a_trial(11)


def test_is_worth_a_trial_accepts_recorded_batches_and_those_below_failure():
    passed = [Trial(batch_size=size, step_ms=1.0, seconds=200.0) for size in (2, 3)]
    unlimited, _ = session_of(*passed)
    limited, _ = session_of(*passed, Trial(batch_size=8, seconds=200.0, failure=OUT_OF_MEMORY))

    assert [unlimited.is_worth_a_trial(size) for size in (2, 3, 4)] == [True, True, False]
    assert [limited.is_worth_a_trial(size) for size in (2, 3, 4)] == [True, True, True]


def test_prove_under_budget_postpones_row_unless_a_row_failed():
    trials = Trial(batch_size=31), Trial(batch_size=32), Trial(batch_size=33, failure=OUT_OF_MEMORY)
    waiting, unasked = session_of(*trials, budget_s=60.0)
    doubting, asked = session_of(*trials, rows=(Row(batch_size=32, failure=OUT_OF_MEMORY),), budget_s=60.0)

    assert waiting.prove(32) is None
    assert doubting.prove(31) is None
    assert (unasked.timed, asked.timed) == ([], [31])


@pytest.mark.parametrize(
    ("message", "kinds"),
    [
        ("CUDA: illegal memory access (RuntimeError: CUDA error)", ["error", "out_of_memory"]),
        ("ValueError: mine", ["kernel_limit", "out_of_memory"]),
    ],
)
def test_kernel_limit_becomes_model_error_if_smallest_batch_has_it_too(message, kinds):
    limit = Failure(kind="kernel_limit", message="CUDA: illegal memory access (RuntimeError: CUDA error)")
    taken = (Trial(batch_size=64, failure=limit), Trial(batch_size=32, failure=OUT_OF_MEMORY))
    record = replace(example(), trials=taken, rows=())
    oracle = Oracle([], 100.0)
    oracle.try_batch = lambda *_, **__: Trial(batch_size=1, failure=Failure(kind="error", message=message))
    session = Session(record, oracle, RecordFile(None, ""), Silent())

    with pytest.raises(ModelFailed):
        session.try_batch(1)

    assert [trial.failure.kind for trial in session.record.trials] == kinds


class GoingOn(Oracle):
    """Times fitting batches in the process of their trial, unless it ends early; records the questions."""

    def __init__(self, fails=(), step_ms=100.0, *, ends_early=False):
        super().__init__(fails, step_ms)
        self.went_on, self.left = [], []
        self._ends_early = ends_early

    def try_and_time(self, batch_size, passed, planned, taken):
        trial = self.try_batch(batch_size, passed, steps=TRIAL_STEPS, memory_limit_bytes=30, taken=taken)
        self.asked.pop()
        self.went_on.append(batch_size)
        try:
            yield replace(trial, memory_limit_bytes=self.memory_limit_bytes)
            if trial.failure is None and not self._ends_early:
                yield row(batch_size, 5.0)
        except GeneratorExit:
            self.left.append(batch_size)
            raise


def going_on(oracle, *, taken=(), **options):
    """Return a session that has tried some batch sizes, under these options."""
    spec = replace(example().spec, **{"memory_limit_bytes": SEARCHED.limit_bytes, **options})
    limit_bytes = oracle.memory_limit_bytes
    trials = tuple(
        Trial(batch_size=size, memory_limit_bytes=limit_bytes, failure=None if fits else OUT_OF_MEMORY, step_ms=1.0)
        for size, fits in taken
    )
    record = replace(example(), spec=spec, trials=trials, edge=None, safe=None, rows=())
    return Session(record, oracle, RecordFile(None, ""), Silent())


@pytest.mark.parametrize(
    ("batch_size", "taken", "options", "goes_on"),
    [
        (11, [(5, True)], {"max_batch": 11}, True),
        (11, [(5, True), (12, False)], {}, True),
        (9, [(6, True), (12, False)], {"granularity": 3}, True),
        (8, [(5, True), (12, False)], {}, True),
        (1, [], {}, True),
        (11, [(5, True), (12, False)], {"budget_s": 60.0}, True),
        (1, [], {"budget_s": 60.0}, True),
        (11, [(5, True)], {}, False),
        (11, [(5, True), (13, False)], {}, False),
        (11, [(5, True), (12, False)], {"budget_s": 5.0}, False),
        (8, [(5, True), (12, False)], {"budget_s": 60.0}, False),
        (11, [(5, True), (12, False)], {"dtype": "amp-fp16", "phase": "train", "parallel": "ddp", "gpus": 2}, False),
    ],
)
def test_trial_continues_as_its_row_if_that_is_due_and_affordable(batch_size, taken, options, goes_on):
    oracle = GoingOn()
    session = going_on(oracle, taken=taken, **options)

    assert session.try_to_time(batch_size) is None

    if goes_on:
        assert session.time_alone(batch_size) is None  # asking a process would fail with this oracle
        assert (oracle.went_on, oracle.asked) == ([batch_size], [])
        assert session.row(batch_size).failure is None
        assert session.record.trials[-1].batch_size == batch_size
    else:
        assert (oracle.went_on, oracle.asked) == ([], [(batch_size, TRIAL_STEPS)])
        assert session.row(batch_size) is None


def test_a_trial_that_goes_on_too_slowly_is_left_without_a_row():
    oracle = GoingOn(step_ms=500.0)
    session = going_on(oracle, taken=[(1, True)], max_latency_ms=400.0)

    assert session.try_to_time(2) == "latency"

    assert (oracle.left, oracle.asked, session.record.rows) == ([2], [], ())


def test_continuing_trial_that_fails_is_kept_without_a_row():
    oracle = GoingOn(fails=[2])
    session = going_on(oracle, taken=[(1, True)])

    assert session.try_to_time(2) == "memory"

    assert (oracle.went_on, oracle.asked, session.record.rows) == ([2], [], ())
    assert len(session.record.trials) == 2


def test_a_process_that_ends_between_trial_and_row_leaves_the_trial():
    oracle = GoingOn(ends_early=True)
    session = going_on(oracle)

    assert session.try_to_time(1) is None

    assert [trial.batch_size for trial in session.record.trials] == [1]
    assert session.record.rows == ()


def test_kernel_error_of_continuing_trial_is_retried_alone():
    oracle = GoingOn()
    limit = Failure(kind="kernel_limit", message="cuBLAS: execution failed (RuntimeError: CUDA error)")
    oracle.try_and_time = lambda batch_size, *_: iter_closed(Trial(batch_size=batch_size, failure=limit))
    session = going_on(oracle, taken=[(1, True)])

    assert session.try_to_time(2) is None

    assert oracle.asked == [(2, TRIAL_STEPS)]


def iter_closed(trial):
    """Yield one trial."""
    yield trial


class TimerOfOne(Timer):
    """The runner of one of several devices, which is its own."""

    def single_device_runner(self):
        return self


@pytest.mark.parametrize("fails_after", [None, 4])
def test_answers_are_timed_on_one_device_in_one_process(fails_after):
    spec = replace(example().spec, parallel="ddp", gpus=2, phase="train", dtype="bf16", slo_ms=None, soak=0)
    rows = (row(1, 5.0), row(2, 8.0), row(4, 20.0))
    record = replace(example(), spec=spec, rows=rows, edge=Edge(largest_batch=4, limited_by="cap"), safe=None)
    timer = TimerOfOne(spec, (4.0,), (), lambda number, size, first: size == fails_after and not first)
    session = Session(record, timer, RecordFile(None, ""), Silent())
    session.time_singly()
    session.time_singly()  # all are known

    assert {each.batch_size for _, each in answers(session.record)} == {2, 4}
    assert [(one.batch_size, one.status) for one in session.record.single_rows] == [(2, "ok"), (4, "ok")]
    assert timer.asked == [(0, (2, 4)), *([(0, (4,))] if fails_after else [])]
