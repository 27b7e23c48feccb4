"""A command never destroys existing files, and an unwritable file never loses its result."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support.command import ENVIRONMENT, QUICK, command, run_program
from support.folders import MODELS
from support.records import example

PLANS = ("--rate", 50, "--slo", "1s")
ARRIVALS = "time_s\n" + "\n".join(str(count / 50) for count in range(200)) + "\n"
PRICES = "device,price_per_hour,currency,source,date\nNVIDIA Example,2,EUR,me,2026-01-01\n"
MODEL = f"{MODELS}/plain.py:keyword_inputs"


@pytest.fixture
def folder(tmp_path):
    """Create a folder with all inputs of commands: a model, weights, two records, prices and arrivals."""
    shutil.copy(MODELS / "plain.py", tmp_path / "plain.py")
    (tmp_path / "weights.pt").write_bytes(bytes(1000))
    (tmp_path / "old.json").write_bytes(example().to_json())
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "old.json").write_bytes(example().to_json())
    (tmp_path / "prices.csv").write_text(PRICES)
    (tmp_path / "arrivals.csv").write_text(ARRIVALS)
    for link, target in (("link.csv", "plain.py"), ("link.html", "plain.py"), ("link.md", "weights.pt")):
        (tmp_path / link).symlink_to(target)
    (tmp_path / "hard.svg").hardlink_to(tmp_path / "plain.py")
    return tmp_path


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "asked",
    [
        ("plain.py:keyword_inputs", "--save", "link.csv"),
        ("plain.py:keyword_inputs", "--save", "link.html"),
        ("plain.py:keyword_inputs", "--save", "new.md", "--save", "hard.svg"),
        ("resnet18", "--weights", "weights.pt", "--save", "link.md"),
        ("weights.pt", "--input-size", "3x8x8", "--save", "./link.md"),
        ("--resume", "old.json", "--save", "old.json"),
        ("clocks", "plain.py:keyword_inputs", "--save", "link.html"),
        ("clocks", "resnet18", "plain.py:keyword_inputs", "--save", "link.csv"),
        ("forecast", "plain.py:keyword_inputs", "--memory", "1GiB", "--on-fake", "--save", "link.csv"),
        ("size", "old.json", *PLANS, "--price", "prices.csv", "--save", "prices.csv"),
        ("size", "old.json", *PLANS, "--arrivals", "arrivals.csv", "--save", "arrivals.csv"),
        ("size", "old.json", *PLANS, "--save", "old.json"),
        ("report", "old.json", "--save", "old.json"),
        ("compare", "old.json", "older/old.json", "--save", "older/old.json"),
        ("compare", ".", "older", "--save", "older/old.json"),
        ("resnet18", "--ray", "--resume", "older", "--save", "older/old.json"),
    ],
)
def test_command_never_writes_over_its_inputs(folder, ask, asked):
    before = contents(folder)

    ran = ask(folder, *asked, "--overwrite")

    assert ran.status == 2
    assert "would be written over" in ran.err
    assert ran.err.count("\n") == 1
    assert contents(folder) == before


def test_only_report_of_same_kind_is_replaced_without_overwrite(folder, ask):
    shown = ("report", "old.json", "--save", "out.csv")
    for content, status in (("my notes", 2), ("", 0), (None, 0)):
        if content is not None:
            (folder / "out.csv").write_text(content)
        ran = ask(folder, *shown)
        assert ran.status == status, ran.err
    (folder / "out.md").symlink_to("out.csv")
    assert "not a Markdown of tputfind's" in ask(folder, "report", "old.json", "--save", "out.md").err
    assert (folder / "out.csv").read_text().startswith("model,phase,")
    assert "--overwrite" in ask(folder, "report", "old.json", "--save", "prices.csv").err
    assert ask(folder, "report", "old.json", "--save", "prices.csv", "--overwrite").status == 0
    assert (folder / "prices.csv").read_bytes() == (folder / "out.csv").read_bytes()


@pytest.mark.parametrize(
    ("asked", "ending", "shown"),
    [
        (("report", "old.json"), "csv", "Fastest batch"),
        (("size", "old.json", *PLANS), "csv", "One fewer"),
        (("compare", "old.json", "older/old.json"), "json", "OLD and NEW"),
        (("forecast", MODEL, "--memory", "1GiB", "--on-fake"), "csv", "largest batch, forecast"),
        (("clocks", MODEL, "--repeats", 10), "json", "host clock alone"),
        ((MODEL, "--batch-sizes", 1, *QUICK), "html", "Fastest batch"),
    ],
)
def test_unwritable_file_loses_neither_the_result_nor_other_files(folder, ask, asked, ending, shown):
    (folder / f"full.{ending}").symlink_to("/dev/full")
    ran = ask(folder, *asked, "--save", f"full.{ending}", "--save", "all.md")

    assert ran.status == 2
    assert shown in ran.out
    assert f"cannot write full.{ending}: No space left on device" in ran.err
    assert "Traceback" not in ran.err
    assert (folder / "all.md").stat().st_size


def test_early_closed_pipe_still_reports_unwritten_files(folder):
    (folder / "full.csv").symlink_to("/dev/full")
    asked = shlex.join([*command(), "report", *["old.json"] * 300, "--save", "full.csv"])
    done = run_program(["bash", "-c", f"{asked} | true"], folder)

    assert "cannot write full.csv" in done.stderr


def test_csv_to_standard_output_is_appended_and_replaces_the_table(folder):
    asked = shlex.join([*command(), "report", "old.json", "--save", "-.csv", "--save", "beside.csv"])
    subprocess.run(["bash", "-c", f"echo before >> log; {asked} >> log"], cwd=folder, env=ENVIRONMENT, check=True)

    assert (folder / "log").read_text() == f"before\n{(folder / 'beside.csv').read_text()}"
    assert not (folder / "-.csv").exists()


def test_disk_without_room_for_record_is_reported_before_measuring(folder):
    asked = shlex.join([*command(), "plain.py:fails", "--batch-sizes", "1", *map(str, QUICK)])
    # Python would keep the first kilobyte of its bytecode file, and fail on it ever after.
    environment = ENVIRONMENT | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = run_program(["bash", "-c", f"ulimit -f 1; {asked}"], folder, environment)

    assert done.returncode == 2
    assert "cannot write in results: File too large (choose another place to write to)" in done.stderr
    assert not list((folder / "results").iterdir())


def test_foreign_csv_next_to_resumed_record_is_kept(folder, ask):
    (folder / "old.csv").write_text("my,table\n")

    assert ask(folder, "--resume", "old.json").status == 2
    assert (folder / "old.csv").read_text() == "my,table\n"
    assert ask(folder, "--resume", "old.json", "--overwrite").status == 0
    assert (folder / "old.csv").read_text().startswith("model,phase,")
