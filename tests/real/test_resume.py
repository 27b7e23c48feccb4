"""A run that was cut short resumes, and ends like an uninterrupted one."""

import json
import random
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pandas
import pytest
from support.command import ENVIRONMENT, QUICK, command
from support.folders import MODELS
from support.shown import KINDS

import tputfind
from tputfind.record.record import Record

SEED = 20261121
KILLS = 4
"""Number of kills, evenly spread over the progress of a run."""
SHORT = ("--batches", 10, "--processes", 2)
ASKED = ("--max-latency", "125ms", *SHORT)
MEASURED = [*(name for name, kind in KINDS.items() if kind == "Float64"), "warmup_steps"]
"""Columns that vary between runs, including the number of warm-up steps."""
OF_NOISE = ("host_busy", "outliers", "trend", "spread", "wide_interval", "not_settled")


def without_figures(path) -> pandas.DataFrame:
    """Return the table without columns that vary between runs: figures, start time, and notices of noise."""
    table = pandas.read_csv(path, dtype=KINDS).drop(columns=[*MEASURED, "started"])
    kinds = table["notices"].fillna("").map(lambda text: ";".join(k for k in text.split(";") if k not in OF_NOISE))
    return table.assign(notices=kinds)


def kill_at(folder, lines: int, seconds: float, *arguments) -> None:
    """Kill a run some seconds after a number of progress lines, because its speed varies between runs."""
    with subprocess.Popen(
        [*command(), *map(str, arguments)],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        for _ in range(lines):
            assert process.stderr.readline()
        time.sleep(seconds)
        process.kill()


SEARCHED = (f"{MODELS}/plain.py:fails_above_3", *SHORT, "--soak", 2, "--headroom", "50%")


class Whole(NamedTuple):
    lines: int
    """Number of progress lines."""
    table: Path


@pytest.fixture(scope="module")
def whole(tmp_path_factory, ask) -> Whole:
    """Provide a run that was never killed."""
    folder = tmp_path_factory.mktemp("whole")
    ran = ask(folder, *SEARCHED)
    assert ran.status == 0
    *progress, saved = ran.err.splitlines()
    assert saved.startswith("saved ")
    (table,) = (folder / "results").glob("*.csv")
    return Whole(len(progress), table)


def test_run_killed_at_any_progress_resumes_to_the_same_table(tmp_path, ask, whole):
    expected = without_figures(whole.table)
    moments = random.Random(SEED)
    lines = [2 + number * (whole.lines - 2) // KILLS for number in range(KILLS)]
    kills = [(line, moments.uniform(0, 0.1)) for line in lines]

    def killed(number: int) -> Path:
        folder = tmp_path / str(number)
        folder.mkdir()
        kill_at(folder, *kills[number], *SEARCHED)
        return folder

    def gone_on_with(folder: Path) -> str:
        kept = list(folder.glob("results/*.json"))
        if not kept:
            return "before anything was saved"
        before = tputfind.load_record(kept[0])
        resumed = ask(folder, "--resume", kept[0].relative_to(folder), "--quiet")

        assert resumed.status == 0, resumed.err
        after = tputfind.load_record(kept[0])
        assert after.trials[: len(before.trials)] == before.trials
        of_size = {row.batch_size: row for row in after.rows}
        assert all(of_size[row.batch_size].timings[: len(row.timings)] == row.timings for row in before.rows)
        pandas.testing.assert_frame_equal(without_figures(kept[0].with_suffix(".csv")), expected)
        return "finished" if before.finished else "resumed"

    with ThreadPoolExecutor(2) as two_at_once:  # mostly waiting
        folders = list(two_at_once.map(killed, range(len(kills))))
    counts = Counter(map(gone_on_with, folders))
    print(f"killed {len(kills)} times, among {whole.lines} lines of progress: {dict(counts)}")
    assert counts["resumed"] >= len(kills) // 2


@pytest.fixture(scope="module")
def cut_short(tmp_path_factory, ask) -> Record:
    """Provide a finished run reduced to its first trials and no rows."""
    folder = tmp_path_factory.mktemp("whole")
    ran = ask(folder, f"{MODELS}/plain.py:sleeps_longer", *ASKED)
    assert ran.status == 0, ran.err
    whole = json.loads(next((folder / "results").glob("*.json")).read_bytes())
    left = whole | {"trials": whole["trials"][:2], "rows": [], "edge": None, "finished": None}
    return tputfind.record.record.decode_record(json.dumps(left).encode(), "cut short")


@pytest.fixture
def resumed(tmp_path, ask):
    """Return a function that resumes a changed record."""

    def go_on(record: Record, *arguments, **changes):
        data = json.loads(record.to_json())
        for name, value in changes.items():
            where, _, field = name.rpartition("__")
            (data[where] if where else data)[field] = value
        (tmp_path / "cut.json").write_text(json.dumps(data))
        return ask(tmp_path, *arguments, "--resume", "cut.json")

    return go_on


def test_resume_repeats_no_finished_trial_and_is_recorded(tmp_path, resumed, cut_short):
    ran = resumed(cut_short)

    assert ran.status == 0, ran.err
    assert "does batch 1 fit" not in ran.err
    assert "does batch 2 fit" not in ran.err
    record = tputfind.load_record(tmp_path / "cut.json")
    assert record.trials[:2] == cut_short.trials
    assert (record.edge.largest_batch, record.edge.limited_by, record.edge.fails_at) == (2, "latency", 3)
    assert (record.started, len(record.resumed)) == (cut_short.started, 1)
    assert record.wall_s > cut_short.wall_s
    assert (tmp_path / "cut.csv").exists()
    assert not (tmp_path / "results").exists() or not list((tmp_path / "results").iterdir())


def test_interrupted_trial_is_repeated_and_trial_timeout_kept(tmp_path, resumed, cut_short):
    first, second = json.loads(cut_short.to_json())["trials"][:2]
    ended = {name: second[name] for name in ("batch_size", "steps", "memory_limit_bytes")}
    ended["failure"] = {"kind": "died", "message": "killed by SIGTERM"}
    ran = resumed(cut_short, trials=[first, ended], spec__trial_timeout_s=50.0)

    assert ran.status == 0, ran.err
    assert "does batch 1 fit" not in ran.err
    assert "does batch 2 fit" in ran.err
    record = tputfind.load_record(tmp_path / "cut.json")
    assert (record.edge.largest_batch, record.edge.limited_by) == (2, "latency")
    assert record.spec.trial_timeout_s == 50


def test_record_without_fitting_batch_ends_like_its_run(tmp_path, ask, resumed):
    asked = (f"{MODELS}/plain.py:four_mebibytes", "--memory-limit", "3MiB")
    first = ask(tmp_path, *asked)
    whole = first.record()
    (path,) = (tmp_path / "results").glob("*.json")
    (smallest,) = json.loads(path.read_bytes())["trials"]
    second = ask(tmp_path, *asked, "--resume", path)
    trials = [smallest | {"batch_size": 61}, smallest]  # as on CUDA, where the first batch tried is a larger one
    third = resumed(whole, trials=trials, rows=[], edge=None, finished=None)

    for ran in (first, second, third):
        assert ran.status == 4
        assert "not even batch 1 fits" in ran.err
        assert "Traceback" not in ran.err
    for record in (whole, tputfind.load_record(tmp_path / "cut.json")):
        assert record.edge.largest_batch == 0
        assert [(row.batch_size, row.status) for row in record.rows] == [(1, "out_of_memory")]


def test_same_command_with_resume_continues_and_finished_record_is_shown(tmp_path, ask, resumed, cut_short):
    same = (f"{MODELS}/plain.py:sleeps_longer", *ASKED)
    first = resumed(cut_short, *same, "--trial-timeout", "1min")
    before = (tmp_path / "cut.json").read_bytes()
    second = ask(tmp_path, *same, "--resume", "cut.json")

    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert "is finished: there is nothing left to measure" in second.err
    assert "Largest batch  2" in second.out
    assert (tmp_path / "cut.json").read_bytes() == before


def test_finished_record_is_refused_for_a_model_that_was_changed(tmp_path, ask):
    path = tmp_path / "net.py"
    path.write_text((MODELS / "plain.py").read_text())
    named = (f"{path}:sleeps", "--batch-sizes", 1, *QUICK)
    first = ask(tmp_path, *named)
    (record,) = (tmp_path / "results").glob("*.json")
    path.write_text(path.read_text() + "\n")

    second, shown = ask(tmp_path, *named, "--resume", record), ask(tmp_path, "--resume", record)

    assert (first.status, second.status, shown.status) == (0, 2, 0), first.err + second.err
    assert "was changed" in second.err


def test_record_without_timed_rows_is_shown_if_it_has_an_edge(resumed, cut_short):
    edge = {"largest_batch": 10_240, "limited_by": "index", "fails_at": 10_752, "closed": False}
    shown = resumed(cut_short, rows=[], edge=edge, finished="2026-01-01T00:00:00Z")

    assert "Largest batch  between 10240 and 10751" in shown.out


@pytest.mark.parametrize(
    ("arguments", "changes", "expected"),
    [
        ((), {"method": 0}, "was measured by method 0"),
        ((), {"environment__device_name": "NVIDIA H200"}, "device_name (NVIDIA H200 then"),
        ((), {"environment__torch": "1.0"}, "torch (1.0 then"),
        ((), {"input_shape": "2"}, "the model's input and parameters"),
        ((f"{MODELS}/plain.py:sleeps_longer", *ASKED, "--seed", 1), {}, "seed (0 then, 1 now)"),
        ((f"{MODELS}/plain.py:mebibytes", *ASKED), {}, "another measurement: model"),
        (("resnet18", "resnet34"), {}, "several models were named"),
        (("--seed", 1), {}, "these options need a MODEL"),
        ((), {"schema": 99}, "it was written by a newer tputfind"),
        ((), {"schema": 0}, "is not a tputfind record"),
        ((), {"spec__granularity": 0}, "is not a tputfind record"),
        ((), {"spec__batch_sizes": [4, 2]}, "--batch-sizes must rise"),
        ((), {"trials": [{"batch_size": -3}]}, "is not a tputfind record"),
    ],
)
def test_a_record_of_something_else_is_refused_and_left_as_it_was(resumed, cut_short, arguments, changes, expected):
    ran = resumed(cut_short, *arguments, **changes)

    assert ran.status == 2, ran.err
    assert expected in ran.err
    assert "Traceback" not in ran.err
    written = json.loads((ran.folder / "cut.json").read_text())
    assert written["trials"] == changes.get("trials", json.loads(cut_short.to_json())["trials"])
    assert written["finished"] is None


def test_run_of_named_batch_sizes_resumes_with_missing_ones(tmp_path, ask):
    first = ask(tmp_path, f"{MODELS}/plain.py:sleeps", "--batch-sizes", "1,2,3", *QUICK)
    (path,) = (tmp_path / "results").glob("*.json")
    data = json.loads(path.read_bytes())
    data["rows"], data["finished"] = [data["rows"][1]], None
    path.write_text(json.dumps(data))

    second = ask(tmp_path, "--resume", path)

    assert (first.status, second.status) == (0, 0), second.err
    rows = tputfind.load_record(path).rows
    assert [row.batch_size for row in rows] == [1, 2, 3]
    assert json.loads(path.read_bytes())["rows"][1] == data["rows"][0]
    assert "timing batch 2" not in second.err


def test_resume_writes_only_to_its_own_record_or_on_request(tmp_path, ask, cut_short):
    (tmp_path / "cut.json").write_bytes(cut_short.to_json())
    before = (tmp_path / "cut.json").read_bytes()

    over = ask(tmp_path, "--resume", "cut.json", "--save", "./cut.json")
    elsewhere = ask(tmp_path, "--resume", "cut.json", "--output", "elsewhere")
    nowhere = ask(tmp_path, "--resume", "cut.json", "--no-save")

    assert (over.status, elsewhere.status, nowhere.status) == (2, 2, 0), nowhere.err
    assert "would be written over" in over.err
    assert "--output cannot be combined with --resume" in elsewhere.err
    assert (tmp_path / "cut.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["cut.json"]
