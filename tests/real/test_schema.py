"""The JSON Schema of a record, as the command prints it."""

import json

import pytest
from jsonschema import Draft202012Validator
from support.command import run
from support.folders import TESTS, record_paths
from support.records import example

from tputfind.record.record import SCHEMA

KEPT = [path for path in record_paths("*/*/*.json") if path.parent.name not in ("clocks", "tune")]


@pytest.fixture(scope="module")
def schema(tmp_path_factory) -> Draft202012Validator:
    ran = run(tmp_path_factory.mktemp("schema"), "schema")
    assert (ran.status, ran.err) == (0, "")
    read = json.loads(ran.out)
    Draft202012Validator.check_schema(read)
    return Draft202012Validator(read)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_every_record_that_is_kept_agrees_with_it(schema, path):
    read = json.loads(path.read_bytes())
    for record in read if isinstance(read, list) else [read]:
        schema.validate(record)


def test_schema_covers_every_field_of_a_record(schema):
    shapes = schema.schema["$defs"]
    record = json.loads((TESTS / "golden" / f"schema-{SCHEMA}.json").read_bytes())

    schema.validate(record)
    assert set(record) == set(shapes["Record"]["properties"])
    assert set(record["spec"]) <= set(shapes["Spec"]["properties"])
    assert all(set(row) <= set(shapes["Row"]["properties"]) for row in record["rows"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "dtype"), "fp4"),
        (("rows", 0, "batch_size"), 0),
        (("rows", 0, "failure"), "out of memory"),
        (("spec",), None),
    ],
)
def test_schema_rejects_an_invalid_record(schema, path, value):
    record = json.loads(example().to_json())
    part = record
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value

    assert not schema.is_valid(record)
