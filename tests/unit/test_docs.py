from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from support.folders import ROOT

import tputfind
from tputfind.commands import main


@pytest.mark.parametrize("command", [[], ["size"], ["compare"], ["report"]])
def test_every_option_of_the_command_is_in_the_readme(command):
    shown = CliRunner().invoke(main, [*command, "--help"]).output
    options = set(re.findall(r"--[a-z][a-z-]+", shown)) - {"--help"}

    missing = [option for option in options if f"`{option}" not in (ROOT / "README.md").read_text()]

    assert len(options) >= 5
    assert not missing


def test_every_option_of_the_readme_is_one_of_the_command():
    shown = "".join(CliRunner().invoke(main, [*command, "--help"]).output for command in ([], ["size"]))
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `--")]

    assert all(option in shown for row in rows for option in re.findall(r"`(--[a-z-]+)`", row.split("|")[1]))


# Those in results/ itself by name: a run in this folder saves there too, and may have been interrupted.
RECORDS = (
    "efficientnet_b0-fp16-nvidia-h200",
    "mobilenet_v3_large-fp16-nvidia-h200",
    "resnet50-fp16-nvidia-h200",
    "resnet50-fp16-nvidia-h200-20261121T051024",
    "vit_b_16-fp16-nvidia-h200",
    *(f"{path.parent.name}/{path.stem}" for path in sorted(ROOT.glob("results/*/*.json"))),
)


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_that_is_kept_in_results_loads_and_is_whole(name):
    path = ROOT / "results" / f"{name}.json"
    record = tputfind.load_record(path)

    assert record.finished is not None
    assert path.with_suffix(".csv").read_bytes().count(b"\n") == len(record.rows) + 1
    if record.edge is not None:
        assert any(row.batch_size == record.edge.largest_batch and row.status == "ok" for row in record.rows)
