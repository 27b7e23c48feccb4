"""Records of unknown origin: each command refuses any content in one line or shows it harmlessly."""

import ast
import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.records import example
from support.shown import csv_of, markdown_of

import tputfind
from tputfind.analysis import notices
from tputfind.commands import main
from tputfind.errors import BadRecord, BadRequest
from tputfind.record.record import decode_record
from tputfind.record.untrusted import printable_json
from tputfind.report import snippet
from tputfind.report.document import Code, Document, Sentences
from tputfind.report.renderers.csv import spreadsheet_text
from tputfind.report.renderers.markdown import render_markdown
from tputfind.session import resume
from tputfind.session.trials import TrialRunner
from tputfind.units import echo, printable

pytestmark = pytest.mark.usefixtures("plots_drawn_once")
ESCAPES = "\x1b[31m", "\x1b]52;c;aGk=\x07", "\x1b]8;;http://x\x1b\\", "\r\b\x9b2J", "\u202e\u200b\u2028", "\x00\x7f\n\t"
DOCUMENTED = {0, 1, 2, 6}


def healthy() -> dict[str, Any]:
    """Return a record as JSON in which every kind of text occurs."""
    record = json.loads(example().to_json())
    record["rows"][0]["timings"][0]["health"]["slowed"] = {"sw_thermal_slowdown": 0.5}
    record["rows"][1]["failure"]["traceback"] = "Traceback\n  line 1\n"
    record["caveats"] = [{"kind": "resized", "seen": "seen", "cause": "cause", "advice": "advice"}]
    record["environment"] |= {"timm": "1", "transformers": "4", "allocator_conf": "none"}
    record["resumed"] = ["2026-11-20T12:00:30+00:00"]
    return record


def places(value: object, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every place in a JSON value, as its keys."""
    if here:
        yield here
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(part, (*here, key))


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def put(place: tuple[Any, ...], new: object) -> dict[str, Any]:
    """Return a healthy record with another value at a place."""
    record = healthy()
    at(record, place[:-1])[place[-1]] = new
    return record


def without(place: tuple[Any, ...]) -> dict[str, Any]:
    record = healthy()
    del at(record, place[:-1])[place[-1]]
    return record


SPANS = ("rows", 0, "timings", 0, "device_ms")
WAITS = ("rows", 0, "timings", 0, "latency_ms")
ODD: dict[str, bytes] = {
    name: json.dumps(record).encode()
    for name, record in {
        "a key that nests deep": put(("extra",), None),
        **{f"spans of {span:g}": put(SPANS, [span]) for span in (1e-308, 0.0, 1e15, 5e-324, -1.0, 1e308, 1e9, 1e-6)},
        **{f"waits of {span:g}": put(WAITS, [span] * 20) for span in (1e-308, 0.0, 1e15, 5e-324, -1.0, 1e9, 1e-6)},
        "waits of 0 everywhere": {
            **healthy(),
            "rows": [
                {**row, "timings": [{**timing, "latency_ms": [0.0] * 20} for timing in row.get("timings", [])]}
                for row in healthy()["rows"]
            ],
        },
        "no spans": put(SPANS, []),
        "no waits": put(WAITS, []),
        "a batch of 0": put(("rows", 0, "batch_size"), 0),
        "no rows": put(("rows",), []),
        "rows twice": {**healthy(), "rows": healthy()["rows"] * 2},
        "rows that fall": {**healthy(), "rows": healthy()["rows"][::-1]},
        "an edge without a row": put(("edge", "largest_batch"), 77),
        "an edge of 0": put(("edge", "largest_batch"), 0),
        "no edge": put(("edge",), None),
        "a safe edge alone": without(("edge",)),
        "not finished": put(("finished",), None),
        "finished before it began": put(("finished",), "1999-01-01T00:00:00+00:00"),
        "started some day": put(("started",), "some day"),
        "started nowhere": put(("started",), ""),
        "no model": put(("spec", "model"), ""),
        "a model of 5000 signs": put(("spec", "model"), "m" * 5000),
        "a model of blanks": put(("spec", "model"), "   "),
        "markup": put(("environment", "device_name"), "[red]hot[/red] [/nothing] :smile:"),
        "a notice in markup": put(("notices", 0, "kind"), "[/]"),
        "options at odds": put(("spec", "optimizer"), "sgd"),
        "an slo of nothing": put(("spec", "slo_ms"), 0.0),
        "no spec": without(("spec",)),
        "a schema of the future": put(("schema",), 99),
        "a temperature of the sun": put(("rows", 0, "timings", 0, "health", "temperature_c"), 1e300),
        "a clock of nothing": put(("rows", 0, "timings", 0, "health", "sm_clock_mhz"), 0.0),
        "power of a star": put(("rows", 0, "timings", 0, "health", "power_w"), 1e15),
        "a share above all": put(("rows", 0, "timings", 0, "health", "slowed"), {"x": 1e15}),
        "memory of nothing": put(("environment", "memory_total_bytes"), 0),
        "notices of batches that are not there": put(("notices", 0, "batch_sizes"), [999]),
        "a wall of 1e15 s": put(("wall_s",), 1e15),
        "a trace of rubbish": put(("trials", 5, "trace", "packed"), "AAAA"),
        "a trace that is no base64": put(("trials", 5, "trace", "packed"), "\x1b"),
    }.items()
} | {
    "nothing": b"",
    "a list": b"[]",
    "a number": b"5",
    "cut short": example().to_json()[:1000],
    "a gzip": b"\x1f\x8b\x08\x00",
    "UTF-16": example().to_json().decode().encode("utf-16"),
    "a mark of byte order": b"\xef\xbb\xbf" + example().to_json(),
    "bytes of no encoding": example().to_json().replace(b"Example CPU", b"\xff\xfe"),
    "half a pair of surrogates": example().to_json().replace(b"Example CPU", b"\\ud800"),
    "a number that is none": example().to_json().replace(b'"wall_s": 60.0', b'"wall_s": NaN'),
    "a number without end": example().to_json().replace(b'"wall_s": 60.0', b'"wall_s": 1e400'),
    "a key twice": example().to_json().replace(b'"schema": 1', b'"schema": 1, "schema": 1'),
}
ODD["a key that nests deep"] = ODD["a key that nests deep"].replace(
    b'"extra": null', b'"extra": ' + b"[" * 5000 + b"]" * 5000
)
COMMANDS = {
    "report": ["report", "x.json", "--save", "o.csv", "--save", "o.md", "--save", "o.html", "--save", "o.svg"],
    "compare": ["compare", "x.json", "y.json", "--force", "--save", "o.md", "--save", "o.json"],
    "compare-new": ["compare", "y.json", "x.json"],
    "size": ["size", "x.json", "--rate", "100", "--slo", "1s", "--save", "o.csv", "--save", "o.md", "--save", "o.json"],
    "compare-folders": ["compare", "old", "new", "--fail-slower", "3%", "--save", "o.md"],
    "resume-asked": ["--resume", "x.json", "resnet50", "--device", "nowhere"],
    "resume": ["--resume", "x.json", "--save", "o.csv", "--save", "o.md", "--save", "o.html"],
}


def invoked(command: str, data: bytes) -> tuple[int, str, list[bytes]]:
    """Run a command in this process on a record and a healthy one; return its exit code, output, and files."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("x.json").write_bytes(data)
        Path("y.json").write_bytes(example().to_json())
        for name, content in {"old": example().to_json(), "new": data}.items():
            Path(name).mkdir()
            (Path(name) / "a.json").write_bytes(content)
        done = CliRunner().invoke(main, COMMANDS[command])
        written = [path.read_bytes() for path in Path().glob("o.*")]
    unexpected = done.exception is not None and not isinstance(done.exception, SystemExit)
    assert not unexpected, f"{command}: {done.exception!r}"
    return done.exit_code, done.output, written


def assert_harmless(text: str) -> None:
    bad = {sign for sign in text if not (sign.isprintable() or sign == "\n")}
    assert not bad, [echo(sign) for sign in bad]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_record_is_refused_in_one_line_or_shown(name, command):
    if (name, command) == ("not finished", "resume"):
        pytest.skip("measures, in processes of torch")
    status, said, written = invoked(command, ODD[name])

    assert status in DOCUMENTED | ({4, 5} if command == "resume" else set())
    assert "Traceback" not in said.replace("Traceback\n  line 1", "")
    assert "msgspec" not in said
    assert "Expected `" not in said
    assert_harmless(said)
    for data in written:
        assert_harmless(data.decode())


HEALTHY = healthy()
PLACES = [*places(HEALTHY)]
ONE_OF_EACH = [*{tuple(key for key in place if isinstance(key, str)): place for place in PLACES}.values()]
STRINGS = [place for place in PLACES if isinstance(at(HEALTHY, place), str)]
CHOICES = {"packed", "dtype", "kind", "limited_by", "result", "ended_by"}
WITHOUT_CHOICE = [place for place in STRINGS if place[-1] not in CHOICES]


@pytest.mark.parametrize("command", ["report", "compare", "compare-folders", "size", "resume-asked", "resume"])
def test_no_sign_of_any_text_in_a_record_acts_on_a_terminal(command):
    text, record = "a".join(ESCAPES), healthy()
    for place in WITHOUT_CHOICE:
        if place[0] != "spec" or place[-1] == "model":
            at(record, place[:-1])[place[-1]] = text
    record["rows"][0]["timings"][0]["health"]["slowed"] = {text: 0.5}

    status, said, written = invoked(command, json.dumps(record).encode())

    assert status in (DOCUMENTED if command in ("resume-asked", "compare-folders") else (0, 1)), said
    for shown in (said, *(data.decode() for data in written)):
        assert_harmless(shown)


@given(st.sampled_from(STRINGS), st.sampled_from(ESCAPES) | st.text(max_size=5))
def test_a_record_with_any_text_at_any_place_is_clean_or_refused(place, text):
    try:
        record = decode_record(json.dumps(put(place, text)).encode(), "x.json")
    except BadRecord as refusal:
        assert refusal.message.isprintable()
        return
    whole = json.loads(record.to_json())
    for kept in places(whole):
        value = at(whole, kept)
        assert not isinstance(value, str) or kept[-1] == "traceback" or value.isprintable()


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


@st.composite
def mutated(draw) -> bytes:
    record = healthy()
    for place in draw(st.lists(st.sampled_from(ONE_OF_EACH), min_size=1, max_size=3)):
        try:
            if draw(st.booleans()):
                at(record, place[:-1])[place[-1]] = draw(JSON)
            else:
                del at(record, place[:-1])[place[-1]]
        except (KeyError, IndexError, TypeError):  # an earlier mutation removed it
            continue
    return json.dumps(record).encode()


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=400)
@given(mutated() | st.binary(max_size=200))
def test_a_mutated_record_is_refused_in_one_line_or_can_be_shown(data):
    try:
        record = decode_record(data, "mutated.json")
    except BadRecord as refusal:
        assert "\n" not in refusal.message
        assert "msgspec" not in refusal.message
        assert "Expected `" not in refusal.message
        return
    record = record if record.notices else msgspec.structs.replace(record, notices=notices.of(record))
    csv_of([record])
    markdown_of([record, record])
    resume.check_spec(record, record.spec)
    try:
        TrialRunner(None, record.spec, record.environment)
    except BadRequest as refusal:
        assert "--headroom" in refusal.message


@given(st.text() | st.sampled_from(ESCAPES))
def test_printable_text_is_left_and_the_rest_is_written_as_escapes(text):
    assert printable(text).isprintable()
    assert printable(text) == text or not text.isprintable()
    assert printable(text, lines=True).replace("\n", "").isprintable()
    assert printable(text, lines=True).count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "odd", [b"1e400", b'"\xff"', b'"\\ud800"', b"-1e999", b'{"\xff": 1}', b"[" * 5000 + b"]" * 5000]
)
def test_odd_value_in_unknown_field_hides_no_escape_elsewhere(odd):
    record = put(("environment", "device_name"), "a\x1b[31mb")
    data = json.dumps(record).encode()[:-1] + b', "extra": ' + odd + b"}"

    with pytest.raises(BadRecord) as refused:
        decode_record(data, "x.json")
    assert refused.value.message.isprintable()
    assert "Expected" not in refused.value.message


def test_printable_escapes_control_characters_and_blanks_tabs():
    assert printable("a\x1b[31m\tb\x9b\u202e") == "a\\x1b[31m b\\x9b\\u202e"


def test_json_that_can_be_shown_is_the_same_bytes():
    for data in (example().to_json(), b"[1, 2]", '{"a": "\\u00e9 \u00e9"}'.encode()):
        assert msgspec.json.decode(printable_json(data)) == msgspec.json.decode(data)
    assert printable_json(example().to_json()) == example().to_json()
    with pytest.raises(msgspec.DecodeError):
        printable_json(b"no \xff json")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (put(("rows", 0, "batch_size"), -1), "rows[0].batch_size: Expected int >= 1"),
        (put(SPANS, [1.0, "a"]), "device_ms[1]: Expected float, got str"),
        (put(SPANS, [0.0, 0.0]), "device_ms adds up to 0 ms, and a clock tells no less than 1e-06"),
        (put(WAITS, [1e-9]), "latency_ms[0]: Expected float >= 1e-06"),
        (put(("spec", "model"), ""), "spec.model: Expected str of length >= 1"),
        (put(("spec", "dtype"), "fp4"), "spec.dtype: Invalid enum value 'fp4'"),
        (put(("spec", "headroom"), "x"), "spec.headroom: Expected int | float | null, got str"),
        (put(("rows", 0, "peak_allocated_bytes"), 2**80), "rows[0].peak_allocated_bytes: Expected int"),
        (without(("environment", "python")), "environment: Object missing required field python"),
        (without(("spec",)), "Object missing required field spec"),
        (put(("spec", "optimizer"), "sgd"), "spec: --optimizer and --grad-checkpoint are for --phase train"),
    ],
)
def test_wrong_field_is_named_with_its_accepted_values(record, expected):
    with pytest.raises(BadRecord) as refused:
        decode_record(json.dumps(record).encode(), "x.json")

    assert refused.value.message.startswith("x.json is not a tputfind record: ")
    assert expected in refused.value.message


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1", "\uff0b1"])
def test_a_cell_that_a_spreadsheet_would_reckon_begins_with_an_apostrophe(text):
    assert spreadsheet_text(text) == f"'{text}"


@pytest.mark.parametrize(
    "text", ["resnet50", "timm:vit_b", "a.py:f", "NVIDIA H200", "1-2", "a=b", "", "/home/a-b.py:f"]
)
def test_an_ordinary_cell_is_left_as_it_is(text):
    assert spreadsheet_text(text) == text


def test_a_formula_in_a_record_is_text_in_every_csv(tmp_path):
    record = put(("spec", "model"), "=cmd|' /C calc'!A1")
    path = tmp_path / "x.json"
    path.write_text(json.dumps(record))
    for arguments in (["report"], ["size", "--rate", "100", "--slo", "1s"]):
        csv = tmp_path / f"{arguments[0]}.csv"
        done = CliRunner().invoke(main, [*arguments, str(path), "--save", str(csv)])
        assert done.exit_code == 0, done.output
        lines = csv.read_text().splitlines()[1:]
        assert lines
        assert all(line.startswith("'=cmd") for line in lines)


def test_markdown_of_others_makes_no_html_no_link_and_no_code():
    lines = ("a <script>", "[x](javascript:y) `z` ![p](q)")
    written = render_markdown(Document(sections=(Sentences(lines), Code(("a[0] < b",), "python"), Sentences(("<b>",)))))

    assert written.decode() == (
        "- a &lt;script>\n- \\[x\\](javascript:y) \\`z\\` !\\[p\\](q)\n\n```python\na[0] < b\n```\n\n- &lt;b>\n"
    )


@given(st.text("\\`[]()<!ab", max_size=12))
def test_no_backslash_of_others_undoes_that_of_ours_in_markdown(text):
    """CommonMark: an even number of backslashes before a sign leaves it active."""
    written = render_markdown(Document(sections=(Sentences((text,)),))).decode()

    for found in re.finditer(r"(\\*)[`\[\]]", written):
        assert len(found[1]) % 2 == 1, written
    assert "<" not in written


@pytest.mark.parametrize("text", ["a|b", "a\\|b", "\\\\|", "|", "x" * 20_000])
def test_markdown_cell_stays_one_cell_on_one_line(text):
    record = put(("environment", "device_name"), text)
    record["notices"][0]["kind"] = text
    records = [decode_record(json.dumps(one).encode(), "x.json") for one in (record, healthy())]
    lines = [line for line in markdown_of(records).decode().splitlines() if line.startswith("|")]
    heads = [place for place, line in enumerate(lines) if line.startswith(("| batch", "| record"))]
    tables = [lines[start:end] for start, end in zip(heads, [*heads[1:], None], strict=True)]

    assert [len(table) for table in tables] == [2 + len(records[0].rows), 2 + len(records[1].rows), 2 + len(records)]
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in table}) == 1


def test_words_of_others_are_no_names_of_signs(tmp_path):
    """Texts that look like rich's names of emoji."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps(put(("caveats",), [{**healthy()["notices"][0], "seen": ":smile: [red]hot"}])))

    assert ":smile: [red]hot" in CliRunner().invoke(main, ["report", str(path)]).output


@pytest.mark.parametrize("dtype", ["fp16", "amp-fp16"])
@pytest.mark.parametrize("model", ["resnet50", "timm:a", "a.py:f"])
def test_copied_code_calls_no_foreign_names(model, dtype):
    record = put(("environment", "device"), 'cpu"); evil(); ("')
    record["spec"] |= {"model": model + '"); evil(); ("', "weights": '"); evil(); ("', "dtype": dtype}
    record["input_shape"] = "evil(), 3"
    code = "\n".join(snippet.lines(decode_record(json.dumps(record).encode(), "x.json"), 2))

    assert "evil" in code
    assert not {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)} & {"evil"}


def test_error_about_a_huge_record_is_one_readable_line():
    status, said, _ = invoked("compare-new", json.dumps(put(("environment", "device_name"), "x " * 500_000)).encode())

    assert status == 2
    assert len(said) < 11_000


def test_endless_file_and_pipe_without_writer_are_no_records(tmp_path):
    with pytest.raises(BadRecord, match="larger than 64 MiB"):
        tputfind.load_record("/dev/zero")

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadRecord):
        tputfind.load_record(tmp_path / "pipe")
