"""Comparing and showing saved records through the command."""

import json
import shlex

import msgspec
import pandas as pd
import pytest
from support.command import command, run_program
from support.folders import RESULTS, ROOT
from support.records import example

import tputfind
from tputfind.record.record import Edge, Failure, Row, Timing, Trial

replace = msgspec.structs.replace


def saved(path, factor=1.0, **changes):
    """Save a record of two batch sizes with three processes each, slowed by a factor."""
    rows = [
        Row(
            batch_size=batch,
            timings=tuple(Timing(device_ms=(ms * factor * near,) * 20) for near in (0.999, 1, 1.001)),
        )
        for batch, ms in ((1, 2.0), (8, 8.0))
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(replace(example(), rows=tuple(rows), notices=(), **{"edge": None, **changes}).to_json())
    return path


@pytest.fixture
def pair(tmp_path):
    saved(tmp_path / "old.json")
    saved(tmp_path / "new.json", 1.05)
    return tmp_path


def test_slowdown_is_reported_with_interval_and_fails_the_gate(pair, ask):
    told = ask(pair, "compare", "old.json", "new.json", "--save", "pr.md", "--save", "all.json")
    failing = ask(pair, "compare", "old.json", "new.json", "--fail-slower", "3%")

    assert told.status == 0, told.err
    assert "SLOWER: OLD 1000 samples/s (batch 8), NEW 952.4 samples/s (batch 8)" in told.out
    assert "| verdict" in (pair / "pr.md").read_text()
    assert [one["verdict"] for one in json.loads((pair / "all.json").read_text())[0]["rows"]] == ["slower", "slower"]
    assert failing.status == 1
    assert (
        "slower by more than 3 %: resnet50 fp16 nchw eager, batch 1: 4.8 % slower; resnet50 fp16 nchw eager, batch 8"
        in failing.err
    )
    assert ask(pair, "compare", "old.json", "new.json", "--fail-slower", "10%").status == 0
    assert ask(pair, "compare", "new.json", "old.json", "--fail-slower", "3%").status == 0


def test_folders_are_compared_by_record_and_unmatched_ones_reported(tmp_path, ask):
    spec = example().spec
    for folder, factor in (("old", 1.0), ("new", 1.0)):
        saved(tmp_path / folder / "a.json", factor)
        saved(tmp_path / folder / "b.json", factor, spec=replace(spec, dtype="bf16"))
    saved(tmp_path / "new" / "a-later.json", 1.2, started="2026-12-01T12:00:00+00:00")
    saved(tmp_path / "new" / "a-latest.json", 1.9, started="2026-12-02T12:00:00+00:00", finished=None)
    saved(tmp_path / "old" / "c.json", spec=replace(spec, model="gone"))
    (tmp_path / "new" / "broken.json").write_text("{")

    ran = ask(tmp_path, "compare", "old", "new")

    assert ran.status == 0, ran.err
    assert "resnet50 fp16 nchw eager on NVIDIA Example: NEW over OLD" in ran.out
    assert "resnet50 bf16 nchw eager" in ran.out
    assert "NEW/OLD 0.833" in ran.out  # a folder's newest finished record of the same work counts
    assert "new has several records of resnet50 fp16 nchw eager" in ran.err
    assert "NEW has no record of gone" in ran.err
    assert "broken.json is not a tputfind record" in ran.err
    gate = ask(tmp_path, "compare", "old", "new", "--fail-slower", "50%")
    assert gate.status == 2  # an unreadable record does not pass the gate


def test_gate_fails_if_no_row_can_be_judged(pair, ask):
    saved(pair / "alone.json")
    record = tputfind.load_record(pair / "alone.json")
    rows = tuple(replace(row, timings=row.timings[:1]) for row in record.rows)
    (pair / "alone.json").write_bytes(replace(record, rows=rows, finished=None).to_json())

    ran = ask(pair, "compare", "old.json", "alone.json", "--fail-slower", "3%")

    assert ran.status == 2
    assert "could not be judged: timed in one process" in ran.err
    assert "NEW was cut short" in ran.out
    assert ask(pair, "compare", "old.json", "alone.json").status == 0


def test_compare_gate_on_noisy_records_exits_with_7_as_the_docs_say(pair, ask):
    noisy = Row(batch_size=8, timings=tuple(Timing(device_ms=(8 * near,) * 20) for near in (0.9, 1, 1.1)))
    (pair / "noisy.json").write_bytes(replace(example(), rows=(noisy,), notices=(), edge=None).to_json())

    ran = ask(pair, "compare", "old.json", "noisy.json", "--fail-slower", "3%")
    (pair / "full.md").symlink_to("/dev/full")
    unwritten = ask(pair, "compare", "old.json", "noisy.json", "--fail-slower", "3%", "--save", "full.md")

    assert ran.status == 7
    assert ran.err == (
        "tputfind: too noisy to exclude that it is 3 % slower: resnet50 fp16 nchw eager at batch 8 (the fastest) "
        "(measure in more processes, or on a quiet machine)\n"
    )
    assert "|| test $? = 7" in (ROOT / "docs" / "guide" / "compare.md").read_text()
    assert unwritten.status == 2


def test_files_of_two_checkouts_match_though_one_model_is_missing(tmp_path, ask):
    spec = example().spec
    for checkout, models in (("old", ("a", "b")), ("new", ("a",))):
        for name in models:
            model = f"/ci/{checkout}/{name}/net.py:make"
            changed = {
                "model": model,
                "weights": f"/ci/{checkout}/weights.pt",
                "image_size": 224 if checkout == "old" else None,
            }
            saved(tmp_path / checkout / f"{name}.json", spec=replace(spec, **changed))

    ran = ask(tmp_path, "compare", "old", "new")

    assert ran.status == 0, ran.err
    assert ran.err.count("has no record of") == 1
    assert "net.py:make fp16 nchw eager on NVIDIA Example: NEW over OLD" in ran.out


def test_records_of_several_devices_and_weights_are_matched_by_these(tmp_path, ask):
    record = example()
    for folder, factors in (("old", (1.0, 2.0)), ("new", (1.0, 2.0))):
        for number, factor in enumerate(factors):
            device = replace(record.environment, device=f"cuda:{number}")
            weights = replace(record.spec, dtype="bf16", weights=f"/ci/{folder}/{number}/last.pt")
            saved(tmp_path / folder / f"device{number}.json", factor, environment=device)
            saved(tmp_path / folder / f"weights{number}.json", factor, spec=weights)

    ran = ask(tmp_path, "compare", "old", "new", "--fail-slower", "3%")

    assert ran.status == 0, ran.err
    assert ran.out.count("NEW over OLD") == 4
    assert "several records" not in ran.err


def test_folder_whose_only_record_is_broken_is_said_to_be_that(pair, ask):
    saved(pair / "a" / "one.json")
    (pair / "b").mkdir()
    (pair / "b" / "one.json").write_text("{")

    ran = ask(pair, "compare", "a", "b")

    assert ran.status == 2
    assert "b/one.json is not a tputfind record" in ran.err
    assert "a and b hold no records of the same work" in ran.err


def test_compare_of_records_in_reverse_order_warns(pair, ask):
    earlier = {"started": "2026-11-19T12:00:00+00:00"}
    saved(pair / "earlier.json", **earlier)
    saved(pair / "a" / "one.json")
    saved(pair / "b" / "one.json", **earlier)

    ran = ask(pair, "compare", "old.json", "earlier.json")
    folders = ask(pair, "compare", "a", "b")

    assert ran.status == 0
    assert ran.err == (
        "tputfind: OLD began later than NEW: 2026-11-20T12:00:00+00:00 and 2026-11-19T12:00:00+00:00 "
        "(the earlier record comes first)\n"
    )
    assert folders.err == ran.err
    assert ask(pair, "compare", "earlier.json", "old.json").err == ""
    assert ask(pair, "compare", "new.json", "old.json").err == ""  # started in the same second


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("old.json", "other.json"), "not comparable: dtype fp16 and fp32"),
        (("old.json", "missing.json"), "cannot read missing.json"),
        ((".", "rec/nope"), "cannot read rec/nope: No such file"),
        (("rec/nope", "."), "cannot read rec/nope: No such file"),
        (("old.json", "new.json", "--fail-slower", "3"), "--fail-slower"),
        (("old.json", "new.json", "--tolerance", "-1%"), "--tolerance"),
        (("old.json", "new.json", "--save", "old.json"), "would be written over"),
        ((".", ".", "--save", "old.json"), "would be written over"),
        (("old.json", "new.json", "--tolerance", "0.2%"), "a tolerance of"),
    ],
)
def test_impossible_comparison_is_refused_in_one_line(pair, ask, arguments, line):
    saved(pair / "other.json", spec=replace(example().spec, dtype="fp32"))
    before = (pair / "old.json").read_bytes()
    ask(pair, "compare", *arguments).check_refused(2, line)
    assert (pair / "old.json").read_bytes() == before


def test_batch_beyond_new_largest_is_lost_and_fails_the_gate(pair, ask):
    edge = Edge(largest_batch=1, limited_by="memory", fails_at=2)
    record = saved(pair / "less.json", edge=edge)
    left = tputfind.load_record(record)
    record.write_bytes(replace(left, rows=left.rows[:1]).to_json())

    ran = ask(pair, "compare", "old.json", "less.json", "--fail-slower", "3%")

    assert ran.status == 1
    assert "batch 8: beyond the largest batch of NEW, 1 (memory)" in ran.err


def test_slowdown_fails_the_gate_with_closed_output(pair):
    asked = shlex.join([*command(), "compare", "old.json", "new.json", "--fail-slower", "3%"])
    shell = ["bash", "-c", f"set -o pipefail; {asked} | true"]
    ran = run_program(shell, pair)

    assert ran.returncode == 1
    assert "slower by more than 3 %" in ran.stderr


def test_force_compares_unlike_records_with_a_warning(pair, ask):
    saved(pair / "other.json", spec=replace(example().spec, dtype="fp32"))
    ran = ask(pair, "compare", "old.json", "other.json", "--force")

    assert ran.status == 0, ran.err
    assert "UNLIKE         compared because of --force: dtype fp16 and fp32" in ran.out


def test_several_records_are_one_tidy_table_that_pandas_reads_with_its_types(tmp_path, ask):
    recipes = RESULTS / "nvidia-h200/recipes/resnet50-fp16.json"
    ran = ask(tmp_path, "report", recipes, "--save", "all.csv", "--save", "all.md", "--slo", "20ms")

    assert ran.status == 0, ran.err
    assert "resnet50 in 6 recipes" in ran.out
    assert "p99 10.32 ms within --slo 20 ms" in " ".join(ran.out.split())
    table = pd.read_csv(tmp_path / "all.csv", dtype_backend="numpy_nullable")
    assert len(table) == 6
    kinds = {name: str(kind) for name, kind in table.dtypes.items()}
    assert (kinds["batch_size"], kinds["samples_per_s"], kinds["throttled"]) == ("Int64", "Float64", "boolean")
    assert table.pivot_table(index="batch_size", columns=["layout", "mode"], values="samples_per_s").shape == (1, 6)
    assert set(table["started"]) == {record.started for record in tputfind.load(recipes)}
    assert "**resnet50 in 6 recipes, all fp16**" in (tmp_path / "all.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "no record to show"),
        (("missing.json",), "cannot read missing.json"),
        (("old.json", "--save", "old.json"), "would be written over"),
        (("old.json", "--slo", "soon"), "--slo"),
    ],
)
def test_impossible_report_is_refused_in_one_line(pair, ask, arguments, line):
    ask(pair, "report", *arguments).check_refused(2, line)


def test_report_with_traceback_shows_the_tracebacks_that_a_record_keeps(pair, ask):
    failure = Failure(kind="error", message="ValueError: no", traceback="Traceback of the model\nValueError: no\n")
    saved(pair / "failed.json", trials=(Trial(batch_size=77, failure=failure),))

    plain, asked = ask(pair, "report", "failed.json"), ask(pair, "report", "failed.json", "--traceback")

    assert (plain.status, asked.status) == (0, 0)
    assert "tputfind report RECORD --traceback shows its traceback" in " ".join(plain.out.split())
    assert "Traceback of the model" not in plain.out
    assert asked.out.startswith(plain.out)
    assert asked.out.count("Traceback of the model\nValueError: no\n") == 1
