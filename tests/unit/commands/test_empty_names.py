"""Empty file names give one line with exit code 2, in every command and option."""

import pytest
from click.testing import CliRunner
from support.records import example

from tputfind.commands import main

TO_SIZE = ("size", "a.json", "--rate", "10", "--slo", "1s")
ARGUMENTS = [
    ("size", "", "--rate", "10", "--slo", "1s"),
    ("size", ".", "--rate", "10", "--slo", "1s"),
    *((*TO_SIZE, option, "") for option in ("--price", "--arrivals", "--observed", "--save")),
    ("report", ""),
    ("report", "a.json", ""),
    ("report", "a.json", "--save", ""),
    ("compare", "", ""),
    ("compare", "a.json", ""),
    ("compare", ".", ""),
    ("compare", "a.json", "a.json", "--save", ""),
    ("--resume", ""),
    *(("resnet18", option, "") for option in ("--output", "--save", "--weights")),
    ("forecast", "resnet18", "--memory", "1GiB", "--save", ""),
    *((command, "") for command in ("run", "clocks", "forecast", "models")),
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=" ".join)
def test_command_with_an_empty_name_ends_in_one_line(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_bytes(example().to_json())

    done = CliRunner().invoke(main, arguments)

    (line,) = done.stderr.splitlines()
    assert done.exit_code == 2
    assert line.startswith("tputfind: ")
    assert "PosixPath" not in line
    assert "''" in line or "empty" in line or arguments[1] == "."
