"""Each field defines its role for two records, and every comparison uses it."""

import typing
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from support.folders import ROOT
from support.records import example

from tputfind import load
from tputfind.analysis.compare import compare
from tputfind.errors import BadRequest
from tputfind.record import identity
from tputfind.record.environment import Environment
from tputfind.record.record import Records
from tputfind.record.spec import Spec
from tputfind.report import text
from tputfind.runners.tune import read_request
from tputfind.session.inspect import stem_of

FIELDS = [(kind, name) for kind in (Spec, Environment) for name in kind.__struct_fields__]
BY_INPUT_SHAPE = ("image_size", "input_size", "sequence_length")
"""Fields of work that the record's shape of its input stands for."""


def changed(kind, name):
    """Return the example record with another, possibly invalid, value in one field."""
    record = example()
    part = "spec" if kind is Spec else "environment"
    held = getattr(record, part)
    value = getattr(held, name)
    other: Any = "other" if isinstance(value, str) else (value or 0) + 1 if isinstance(value, int | float) else "other"
    if name == "can":
        other = replace(held.can, health=False)
    changed = held.__copy__()
    msgspec.structs.force_setattr(changed, name, other)
    copied = record.__copy__()
    msgspec.structs.force_setattr(copied, part, changed)
    return record, copied


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_compare_refuses_other_work_and_reports_only_reportable_fields(kind, name):
    old, new = changed(kind, name)
    role = identity.roles(kind)[name]

    assert role in typing.get_args(identity.Role)
    if role == "work" and name not in BY_INPUT_SHAPE:
        with pytest.raises(BadRequest, match="not comparable"):
            compare(old, new)
    else:
        told = compare(old, new).differs
        assert len(told) == (role == "told"), told


def test_records_of_busy_devices_answer_the_question_of_their_one_spec():
    record = replace(example(), spec=Spec(model="resnet50"))
    loads = ("solo", {}), ("queue", {"busy_devices": 2}), ("all_busy", {"busy_devices": 2, "batch_sizes": (1,)})
    specs = [replace(record.spec, device=f"cuda:{number}", load=load, **more)
             for number, (load, more) in enumerate(loads)]  # fmt: skip
    found = identity.question_of(Records(replace(record, spec=spec) for spec in specs))
    asked = identity.Question((record.spec,))

    assert identity.unlike_questions(found, asked) == []
    other = identity.Question((replace(record.spec, model="vgg11"),))
    assert identity.unlike_questions(found, other) == ["model (resnet50 there, vgg11 here)"]


def test_race_on_a_list_of_devices_answers_the_same_request_again():
    race = load(ROOT / "results/nvidia-h200-x2/tune/resnet50-fp16.json")
    given = {"device": "all", "dtype": "fp16", "budget": race.budget_s}
    asked = read_request("resnet50", given, "throughput", None, "")
    found = identity.question_of(race)

    assert race.specs[0].device == "cuda:0"
    assert identity.unlike_questions(found, identity.Question((asked.plain,), any_device=True)) == []
    assert identity.unlike_questions(found, identity.Question((asked.plain,))) == ["device (cuda:0 there, auto here)"]


def test_training_with_checkpointing_is_other_work_of_another_name():
    plain = replace(example(), spec=replace(example().spec, phase="train", dtype="bf16"))
    twice = replace(plain, spec=replace(plain.spec, grad_checkpoint=True))

    assert identity.name_of(twice.spec) == identity.name_of(plain.spec) + " checkpoint"
    assert identity.work_key(twice) != identity.work_key(plain)


@pytest.mark.parametrize(
    ("record", "fields", "field", "texts"),
    [
        ({"input_shape": "3x64x64"}, {}, "input", ["3x224x224", "3x64x64"]),
        ({}, {"transfer": "h2d"}, "transfer", ["transfer none", "transfer h2d"]),
        ({}, {"weights": "DEFAULT"}, "weights", ["weights random", "weights DEFAULT"]),
        ({}, {"memory_limit_bytes": 24 * 2**30}, "memory", ["no memory limit", "memory limit 24.0 GiB"]),
    ],
)
def test_records_of_other_work_are_named_by_it_instead_of_their_start(record, fields, field, texts):
    old = replace(example(), input_shape="3x224x224")
    new = replace(old, started="2026-01-01T00:00:00Z", spec=replace(old.spec, **fields), **record)

    assert identity.distinguishing_fields([old, new]) == [field]
    assert [identity.NAMES[field](one) for one in (old, new)] == texts


def test_records_of_training_are_named_by_their_optimizer():
    spec = replace(example().spec, phase="train", dtype="bf16")
    records = [replace(example(), spec=replace(spec, optimizer=name)) for name in (None, "adamw")]

    assert identity.distinguishing_fields(records) == ["training"]
    assert [identity.NAMES["training"](one) for one in records] == ["sgd", "adamw"]
    assert [text.title(one).partition(" on ")[0].split()[-2] for one in records] == ["sgd", "adamw"]
    assert len({stem_of(one.spec, one.environment) for one in records}) == 2
