"""Any value of an option is read or refused, and an empty name is refused in one line."""

import contextlib
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.records import example

from tputfind.commands import main
from tputfind.commands.options import MEASURING
from tputfind.errors import BadRequest
from tputfind.record.spec import read_spec

OPTIONS = sorted(option.name for option in MEASURING if option.takes is not None)
WORDS = st.text(max_size=12) | st.sampled_from(
    ["0", "-1", "1e400", "nan", "5%", "100%", "8GiB", "0B", "1,2", "1x2", "inf", "none", "auto", "٣", "1" * 5000]
)


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
