import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.folders import GOLDEN
from support.records import example, row

import tputfind
from tputfind.errors import BadRecord
from tputfind.record.environment import Environment
from tputfind.record.record import (
    SCHEMA,
    Failure,
    Health,
    Notice,
    Record,
    Row,
    Timing,
    Trial,
    decode_record,
    decode_records,
    merge_rows,
)
from tputfind.record.spec import Spec

TEXT = st.text(st.sampled_from("aZ09 -_.:=@<é漢😀"), max_size=10)  # printable text
MAYBE_BYTES = st.none() | st.integers(0, 2**50)
MS = st.lists(st.floats(1e-6, 1e9), max_size=5).map(tuple)
FAILURES = st.none() | st.builds(Failure, kind=st.sampled_from(["died", "error"]), message=TEXT, traceback=TEXT)
SHARES = st.dictionaries(st.sampled_from(["power_cap", "software_thermal"]), st.floats(0, 1))
HEALTHS = st.none() | st.builds(
    Health, readings=st.integers(0, 9), power_w=st.none() | st.floats(0, 900), slowed=SHARES
)
RECORDS = st.builds(
    Record,
    tputfind=TEXT,
    command=TEXT,
    started=TEXT,
    spec=st.builds(
        Spec,
        model=TEXT.filter(bool),
        batch_sizes=st.none() | st.just((1, 2)),
        max_latency_ms=st.none() | st.just("auto") | st.just(5.0),
    ),
    environment=st.builds(
        Environment,
        device=TEXT,
        device_name=TEXT,
        torch=TEXT,
        python=TEXT,
        host=TEXT,
        cpu_name=TEXT,
        cpu_count=st.integers(1, 99),
        torch_threads=st.integers(1, 99),
    ),
    input_shape=TEXT,
    trials=st.lists(
        st.builds(Trial, batch_size=st.integers(1, 2**31 - 1), failure=FAILURES, peak_reserved_bytes=MAYBE_BYTES),
        max_size=3,
    ).map(tuple),
    rows=st.lists(
        st.builds(
            Row,
            batch_size=st.integers(1, 2**31 - 1),
            failure=FAILURES,
            timings=st.lists(
                st.builds(
                    Timing, device_ms=MS, latency_ms=MS, health=HEALTHS, others_busy_cores=st.none() | st.floats(0, 99)
                ),
                max_size=2,
            ).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    notices=st.lists(st.builds(Notice, kind=TEXT, seen=TEXT, cause=TEXT, advice=TEXT), max_size=2).map(tuple),
)


@given(RECORDS)
def test_a_record_comes_back_from_json_as_it_was(record):
    assert decode_record(record.to_json(), "test") == record


def test_record_of_schema_1_loads_as_it_was_written_with_its_trace(golden):
    golden("schema-1.json", example().to_json())
    record = tputfind.load_record(GOLDEN / "schema-1.json")

    assert record == example()
    assert [*record.trials[-1].trace.events()] == [
        ("outside", 500 * 2**20),
        ("allocate", 100),
        ("allocate", 2**20),
        ("allocate", 10),
        ("release", 2),
    ]


def test_samples_of_tokens_beyond_32_bits_are_read_back():
    tokens = Row(batch_size=524_288, samples=4096 * 524_288)

    assert msgspec.json.decode(msgspec.json.encode(tokens), type=Row) == tokens
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"batch_size": 1, "samples": 0}', type=Row)


@pytest.mark.parametrize(
    ("data", "command"),
    [
        (b'{"kind":"pipeline"}', "clocks"),
        (b'{"kind": "forecast"}', "forecast"),
        (b'{"kind": "race", "schema": 1}', "tune"),
        (b'{\n "plans": []}', "size"),
        (b'{"model": "resnet50"}', "compare"),
    ],
)
def test_result_of_another_command_is_refused_by_its_command(data, command):
    for refuse in (lambda: decode_record(data, "it"), lambda: decode_records(b"[" + data + b"]", "it")):
        with pytest.raises(BadRecord, match=f"is not a record of a run: tputfind {command} wrote it"):
            refuse()


def test_merged_row_holds_timings_of_both_processes():
    first = row(4, 5.0)
    later = replace(row(4, 6.0, batches=50), peak_reserved_bytes=2**30, memory_of_others_bytes=7)
    both = merge_rows(first, later)

    assert both.timings == (*first.timings, *later.timings)
    assert both.samples_per_s == pytest.approx(4 * 150 / (100 * 5.0 + 50 * 6.0) * 1000)
    assert (both.peak_reserved_bytes, both.memory_of_others_bytes, both.seconds) == (2**30, 7, 3.0)
    assert both.output == first.output
    assert merge_rows(replace(first, output=None), later).output == later.output


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is not JSON, or cut short"),
        (b"{", "it is not JSON, or cut short"),
        (b"5", "Expected object, got int"),
        (b"{}", "Object missing required field schema"),
        (b'{"schema": 1, "rows": 7}', "rows: Expected array, got int"),
    ],
)
def test_non_record_is_refused_in_one_line(data, said):
    with pytest.raises(BadRecord) as refused:
        decode_record(data, "edited.json")

    assert refused.value.message == f"edited.json is not a tputfind record: {said}"


@pytest.mark.parametrize(
    ("field", "one", "other", "both"),
    [
        ("peak_allocated_bytes", 5, 7, 7),
        ("peak_allocated_bytes", 7, 5, 7),
        ("peak_allocated_bytes", None, 5, 5),
        ("peak_allocated_bytes", None, None, None),
        ("peak_reserved_bytes", 7, 5, 7),
        ("peak_reserved_bytes", 5, None, 5),
        ("allocator_retries", 2, 3, 5),
        ("allocator_retries", None, 3, 3),
        ("allocator_retries", 2, None, 2),
        ("allocator_retries", None, None, None),
        ("seconds", 1.5, 2.0, 3.5),
        ("samples", 9, None, 9),
        ("samples", None, 9, 9),
        ("parameter_bytes", {"float32": 4}, {}, {"float32": 4}),
        ("parameter_bytes", {}, {"float32": 4}, {"float32": 4}),
        ("gradient_bytes", 4, None, 4),
        ("seen", ("a", "b"), ("b", "c"), ("a", "b", "c")),
    ],
)
def test_merged_row_keeps_larger_peak_and_findings_and_adds_retries_and_seconds(field, one, other, both):
    first, later = (replace(row(4, 5.0), **{field: value}) for value in (one, other))

    assert getattr(merge_rows(first, later), field) == both


def test_row_with_failed_later_process_has_failed_without_throughput():
    failure = Failure(kind="died", message="killed by SIGKILL")
    both = merge_rows(row(4, 5.0), Row(batch_size=4, failure=failure))

    assert (both.status, both.samples_per_s, len(both.timings)) == ("died", None, 1)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (SCHEMA + 1, f"schema {SCHEMA + 1}, and this version reads up to {SCHEMA}"),
        (0, "is not a tputfind record: .*schema"),
        (-1, "is not a tputfind record: .*schema"),
    ],
)
def test_record_of_newer_or_impossible_schema_is_refused(schema, reason):
    with pytest.raises(BadRecord, match=reason):
        decode_record(replace(example(), schema=schema).to_json(), "edited.json")


@given(st.integers(0, len(example().to_json()) - 2))
def test_a_truncated_record_is_refused(length):
    with pytest.raises(BadRecord, match="is not a tputfind record"):
        decode_record(example().to_json()[:length], "cut.json")


@pytest.mark.parametrize("name", ["none.json", "a\0b"])
def test_file_that_cannot_be_read_is_no_record(tmp_path, name):
    with pytest.raises(BadRecord, match="cannot read"):
        tputfind.load_record(tmp_path / name)


def test_throughput_is_batches_times_batch_size_over_the_window():
    assert row(32, 8.0).samples_per_s == pytest.approx(4000.0)
    assert Row(batch_size=4).samples_per_s is None


def test_scaling_efficiency_is_over_as_many_devices_that_work_alone():
    spec = replace(example().spec, parallel="ddp", gpus=4, phase="train", dtype="bf16")
    record = replace(example(), spec=spec, single_rows=(row(2, 1.0), row(4, 4.0), Row(batch_size=8)))

    assert record.scaling_efficiency(row(4, 1.25)) == pytest.approx(0.8)
    assert record.scaling_efficiency(Row(batch_size=4)) is None
    assert [record.scaling_efficiency(row(size, 1.0)) for size in (1, 8)] == [None, None]


NO = Failure(kind="out_of_memory", message="no")
TRIALS = (Trial(batch_size=16), Trial(batch_size=32), Trial(batch_size=64, failure=NO))


@pytest.mark.parametrize(
    ("trials", "rows", "largest"),
    [
        (TRIALS, (), 32),
        (TRIALS, (row(48, 1.0),), 48),
        (TRIALS, (Row(batch_size=32, failure=NO),), 16),
        ((), (row(8, 1.0), Row(batch_size=16, failure=NO)), 8),
        ((Trial(batch_size=1, failure=NO),), (), 0),
        ((), (), 0),
    ],
)
def test_largest_batch_without_an_edge_is_the_largest_that_never_failed(trials, rows, largest):
    assert replace(example(), edge=None, safe=None, trials=trials, rows=rows).largest_batch == largest
    assert replace(example(), trials=trials, rows=rows).largest_batch == example().edge.largest_batch > 0
