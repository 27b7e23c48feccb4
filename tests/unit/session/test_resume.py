"""The parts of a cut-short record that a resumed run keeps."""

import re
from hashlib import sha256

import pytest
from msgspec.structs import replace
from support.folders import record_path
from support.records import example, row

import tputfind
from tputfind.errors import BadRecord
from tputfind.processes.messages import Inspection
from tputfind.record import identity
from tputfind.record.environment import Environment
from tputfind.record.record import Edge, Failure, Row, Trial
from tputfind.record.spec import Spec, apply_findings
from tputfind.record.types import METHOD
from tputfind.session.resume import (
    can_go_on,
    check_file,
    check_same,
    check_spec,
    recorded_winner,
    resumed_contenders,
    resumed_record,
    without_accidents,
)

RECORD = example()
PATIENCE = {"trial_timeout_s", "strict", "grad_mode", "find_unused_parameters", "given_defaults"}
PATIENCE |= {"host_lengths", "lengths_input"}
"""Fields in which a resumed run may differ: timeouts and detected properties."""


class Free(Spec, frozen=True, kw_only=True):
    """A spec of any fields, without checks of their consistency."""

    def __post_init__(self) -> None:
        """Skip all checks."""


def spec_with(**fields: object) -> Spec:
    return Free(**{name: getattr(RECORD.spec, name) for name in Spec.__struct_fields__} | fields)


def inspection(**fields: object) -> Inspection:
    known = {
        "environment": RECORD.environment,
        "input_shape": RECORD.input_shape,
        "parameters": RECORD.parameters,
        "source_sha256": RECORD.source_sha256,
    }
    return Inspection(**known | fields)


ACCIDENTS = [
    Failure(kind="timeout", message="no answer within 2 s"),
    Failure(kind="died", message="killed by SIGTERM"),
    Failure(kind="died", message="killed by SIGINT"),
    Failure(kind="died", message="killed by SIGHUP"),
    Failure(kind="died", message="the measuring process was killed"),
    Failure(kind="died", message="rank 1: killed by SIGTERM"),
    Failure(kind="died", message="instance 0: the measuring process was killed"),
]
FAULTS = [
    Failure(kind="out_of_memory", message="OutOfMemoryError: CUDA out of memory."),
    Failure(kind="died", message="killed by SIGSEGV"),
    Failure(kind="error", message="ValueError: killed by SIGTERM"),
    Failure(kind="wrong_output", message="sample 0 differs"),
]


@pytest.mark.parametrize("failure", ACCIDENTS, ids=lambda failure: failure.message)
def test_resume_forgets_accidents_and_keeps_timings_of_the_row(failure):
    timed, lost = row(1, 4.0), Row(batch_size=2, failure=failure)
    begun = replace(row(4, 5.0), failure=failure)
    passed, ended = Trial(batch_size=1, step_ms=1.0), Trial(batch_size=2, failure=failure)
    record = replace(example(), trials=(passed, ended), rows=(timed, lost, begun), single_rows=(timed, lost))

    left = without_accidents(record)

    assert left.trials == (passed,)
    assert left.rows == (timed, row(4, 5.0))
    assert left.single_rows == (timed,)


@pytest.mark.parametrize("failure", FAULTS, ids=lambda failure: failure.message)
def test_resume_keeps_failures_of_the_model(failure):
    trials = (Trial(batch_size=2, failure=failure),)
    record = replace(example(), trials=trials, rows=(Row(batch_size=2, failure=failure),))

    assert without_accidents(record) == record


def test_resumed_record_keeps_findings_and_looks_for_its_edge_again():
    ended = Trial(batch_size=2, failure=ACCIDENTS[0])
    spec = replace(RECORD.spec, grad_mode="no_grad")
    begun = replace(RECORD, spec=spec, trials=(*RECORD.trials, ended), finished=None, resumed=("yesterday",))

    resumed = resumed_record(begun, replace(RECORD.spec, trial_timeout_s=9.0), inspection())

    assert can_go_on(begun)
    assert not can_go_on(RECORD)
    assert resumed.spec == replace(spec, trial_timeout_s=9.0)
    assert (resumed.trials, resumed.rows, resumed.edge, resumed.safe) == (RECORD.trials, RECORD.rows, None, None)
    assert (resumed.resumed[0], len(resumed.resumed)) == ("yesterday", 2)
    with pytest.raises(BadRecord, match="parameters"):
        resumed_record(begun, RECORD.spec, inspection(parameters=1))


@pytest.mark.parametrize("field", Spec.__struct_fields__)
def test_another_value_of_a_field_is_another_question_unless_it_is_patience(field):
    now = spec_with(**{field: "another"})
    if field in PATIENCE:
        check_spec(RECORD, now)
        return
    with pytest.raises(BadRecord) as refused:
        check_spec(RECORD, now)
    assert re.search(f"another measurement: {field} \\(.* then, .* now\\)$", refused.value.message)
    assert "--resume alone" in refused.value.hint


@pytest.mark.parametrize("field", Environment.__struct_fields__)
def test_record_is_resumed_only_in_same_environment_except_free_memory(field):
    then = getattr(RECORD.environment, field)
    other = then + 1 if isinstance(then, int) else f"{then}x"
    now = inspection(environment=replace(RECORD.environment, **{field: other}))
    if identity.roles(Environment)[field] == "free":
        check_same(RECORD, RECORD.spec, now)
        return
    with pytest.raises(BadRecord, match=f"cannot be resumed here, since this differs: {field} "):
        check_same(RECORD, RECORD.spec, now)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (inspection(input_shape="3x8x8"), "the model's input and parameters"),
        (inspection(parameters=1), "the model's input and parameters"),
        (inspection(source_sha256="0"), "the file that the model is made by was changed"),
    ],
)
def test_another_model_under_the_same_name_is_not_gone_on_with(now, expected):
    with pytest.raises(BadRecord, match=expected):
        check_same(RECORD, RECORD.spec, now)


def test_each_refusal_lists_all_differences_and_advice():
    elsewhere = replace(RECORD.environment, device_name="B", torch="3")
    then = RECORD.environment
    device = f"device_name ({then.device_name} then, B now)"
    refusals = {
        lambda: check_same(RECORD, RECORD.spec, inspection(environment=elsewhere)): (
            f"the record cannot be resumed here, since this differs: {device}; torch ({then.torch} then, 3 now)",
            "resume it where it was begun, or measure anew without --resume",
        ),
        lambda: check_same(replace(RECORD, method=0), RECORD.spec, inspection()): (
            f"the record was measured by method 0, and this version measures by method {METHOD}",
            "measure anew: the figures of the two must not stand side by side",
        ),
        lambda: check_spec(RECORD, spec_with(dtype="bf16", seed=9)): (
            f"the record is of another measurement: dtype ({RECORD.spec.dtype} then, bf16 now); seed (0 then, 9 now)",
            "give its own model and options, or --resume alone",
        ),
    }
    for refuse, (message, hint) in refusals.items():
        with pytest.raises(BadRecord) as refused:
            refuse()
        assert (refused.value.message, refused.value.hint) == (message, hint)


def test_the_record_of_a_live_object_is_not_gone_on_with():
    record = replace(RECORD, spec=replace(RECORD.spec, model="Net (live)"))

    with pytest.raises(BadRecord, match=r"cannot be resumed: Net \(live\) was an object of a Python process"):
        check_file(record)


@pytest.mark.parametrize(
    ("model", "changed"), [("net.py:make", True), ("of:mine/net.py:make", True), ("net.pt2", True), ("resnet50", False)]
)
def test_a_file_that_was_changed_is_refused_before_it_is_run(tmp_path, monkeypatch, model, changed):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / (model.rpartition(":")[0] or model)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"as it was")
    spec = replace(RECORD.spec, model=model)
    record = replace(RECORD, spec=spec, source_sha256=sha256(b"as it was").hexdigest())
    check_file(record)

    path.write_bytes(b"changed")
    check_file(replace(record, source_sha256=None))
    if not changed:
        check_file(record)
        return
    with pytest.raises(BadRecord, match="was changed"):
        check_file(record)
    path.unlink()
    check_file(record)


@pytest.mark.parametrize(("asked", "expected"), [(1, 4), (6, 6)])
def test_resumed_run_keeps_detected_properties_unless_granularity_is_given(asked, expected):
    found = apply_findings(spec_with(granularity=asked), spec_with(grad_mode="no_grad", granularity=4))

    assert (found.grad_mode, found.granularity) == ("no_grad", expected)


RACE = tputfind.load(record_path("nvidia-h200/tune/resnet50-fp16.json"))
RACE = replace(RACE, method=METHOD, record=replace(RACE.record, method=METHOD))


def question(race):
    return race.goal, race.specs[0], race.device_name, race.source_sha256


@pytest.mark.parametrize(
    ("field", "other", "shown"),
    [
        ("method", METHOD - 1, rf"method \({METHOD - 1} there, {METHOD} here\)"),
        ("goal", "latency", r"goal \(latency there, throughput here\)"),
        ("source_sha256", "0", "the file that the model is made by was changed"),
        ("device_name", "B", "device"),
    ],
)
def test_race_of_something_else_is_not_gone_on_with(field, other, shown):
    with pytest.raises(BadRecord, match=f"this differs: {shown}"):
        resumed_contenders(replace(RACE, **{field: other}), *question(RACE))


def test_race_goes_on_with_the_timeouts_and_budget_of_now():
    goal, plain, *place = question(RACE)
    free = {"trial_timeout_s": 9.0, "budget_s": 77.0}

    contenders = resumed_contenders(RACE, goal, replace(plain, **free), *place)

    assert [one.spec for one in contenders] == [replace(one.spec, **free) for one in RACE.contenders]
    assert [one.against for one in contenders] == [
        one.against and replace(one.against, **free) for one in RACE.contenders
    ]


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("timeout: took longer than 600 s", "untried"),
        ("died: instance 2: killed by SIGTERM", "untried"),
        ("died: killed by SIGSEGV", "failed"),
        ("error: ValueError: killed by SIGTERM", "failed"),
    ],
)
def test_variant_that_failed_by_accident_is_tried_again(reason, outcome):
    first, *others, last = RACE.contenders
    failed = [replace(one, outcome="failed", reason=reason) for one in (first, last)]

    found = resumed_contenders(replace(RACE, contenders=(failed[0], *others, failed[1])), *question(RACE))

    assert [found[0].outcome, found[-1].outcome] == [outcome, outcome]
    assert [one.outcome for one in found[1:-1]] == [one.outcome for one in others]


def test_winner_is_measured_again_unless_its_record_is_complete_and_matches():
    record = replace(RACE.record, edge=Edge(largest_batch=3072, limited_by="memory", fails_at=3073))
    winner = replace(record.spec, budget_s=77.0)
    now = inspection(
        environment=record.environment, input_shape=record.input_shape, parameters=record.parameters, source_sha256=None
    )

    def recorded(winner=winner, **fields):
        return recorded_winner(replace(RACE, record=replace(record, **fields)), winner, now)

    assert recorded() == record
    assert recorded(edge=None) is None
    fixed = {"edge": None, "spec": replace(record.spec, batch_sizes=(8,))}
    assert recorded(replace(winner, batch_sizes=(8,)), **fixed) == replace(record, **fixed)
    brief = replace(record.rows[0], ended_by="budget")
    assert recorded(rows=(brief, *record.rows[1:])) is None  # it has not all of its processes
    assert recorded(finished=None) is None
    assert recorded(edge=RACE.record.edge) is None  # its search was cut short
    assert recorded(replace(winner, seed=1)) is None
    assert recorded(parameters=1) is None
    assert recorded_winner(replace(RACE, record=None), winner, now) is None


def test_winner_of_an_interrupted_race_keeps_its_finished_record():
    record = replace(RACE.record, edge=Edge(largest_batch=3072, limited_by="memory", fails_at=3073))
    race, leader = replace(RACE, record=record), replace(record.spec, budget_s=77.0, batch_sizes=(8, 16))

    assert recorded_winner(race, leader) == record
    assert recorded_winner(race, replace(leader, layout="nchw", mode="eager")) is None
    assert recorded_winner(replace(race, record=replace(record, finished=None)), leader) is None
