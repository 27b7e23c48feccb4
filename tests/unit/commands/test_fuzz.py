"""Any content of a record or an option is read or refused, and everything read can be shown."""

import contextlib
import json
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.records import example
from support.shown import csv_of, markdown_of

from tputfind.analysis import notices
from tputfind.commands import main
from tputfind.commands.options import MEASURING
from tputfind.errors import BadRecord, BadRequest
from tputfind.record.record import Record, decode_record
from tputfind.record.spec import Spec, read_spec
from tputfind.session import resume
from tputfind.session.trials import TrialRunner

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["ok", "died", "memory", "cap", "auto", "fp16", 0, -1, 2**31, 2**63, 1e308, "a|b", "../x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
OPTIONS = sorted(option.name for option in MEASURING if option.takes is not None)
WORDS = st.text(max_size=12) | st.sampled_from(
    ["0", "-1", "1e400", "nan", "5%", "100%", "8GiB", "0B", "1,2", "1x2", "inf", "none", "auto", "٣", "1" * 5000]
)


def places(value: object, here: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Return every place in a JSON value, as its keys."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, part in inner for place in places(part, (*here, key)))]


WHOLE = json.loads(example().to_json()) | {"rows": json.loads(example().to_json())["rows"][2:]}
PLACES = [place for place in places(WHOLE) if place]


@st.composite
def mutated(draw) -> bytes:
    record = json.loads(json.dumps(WHOLE))
    for place in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3)):
        part = record
        try:
            for key in place[:-1]:
                part = part[key]
            if draw(st.booleans()):
                part[place[-1]] = draw(JSON)
            else:
                del part[place[-1]]
        except (KeyError, IndexError, TypeError):  # an earlier mutation removed it
            continue
    return json.dumps(record).encode()


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=400)
@given(mutated() | st.binary(max_size=200) | st.integers(0, 3000).map(lambda end: example().to_json()[:end]))
def test_a_mutated_record_is_refused_in_one_line_or_can_be_shown(data):
    try:
        record = decode_record(data, "mutated.json")
    except BadRecord as refusal:
        assert "\n" not in refusal.message
        return
    assert isinstance(record, Record)
    record = record if record.notices else type(record)(**_fields(record) | {"notices": notices.of(record)})
    csv_of([record])
    markdown_of([record, record])
    resume.check_spec(record, record.spec)
    try:
        TrialRunner(None, record.spec, record.environment)
    except BadRequest as refusal:
        assert "--headroom" in refusal.message


def _fields(record: Record) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


@given(st.dictionaries(st.sampled_from(OPTIONS), WORDS | JSON, min_size=1, max_size=4), WORDS)
def test_any_options_make_a_spec_or_are_refused_with_a_hint(options, model):
    try:
        spec = read_spec(model, options)
    except BadRequest as refusal:
        assert refusal.hint
        return
    assert isinstance(spec, Spec)


@settings(max_examples=60)
@given(st.sampled_from(OPTIONS), WORDS)
def test_wrong_option_exits_with_2_and_writes_no_file(option, word):
    """--resume names a missing file, so a valid option ends the command too, before any process starts."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        arguments = ["resnet18", f"--{option.replace('_', '-')}={word}", "--resume", "none.json"]
        done = CliRunner().invoke(main, arguments)

        assert done.exit_code == 2, done.output
        assert "Traceback" not in done.output
        assert not list(Path().iterdir())


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_of_the_command_has_a_reader(name):
    with pytest.raises(BadRequest, match=f"--{name.replace('_', '-')}"):
        read_spec("resnet18", {name: object()})
