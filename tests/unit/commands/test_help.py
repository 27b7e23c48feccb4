"""Help is easy to scan: it is short, in sections, with choices and examples, and matches the parsers."""

import re
import shlex

import pytest
from click.testing import CliRunner

from tputfind.commands import COMMANDS, main
from tputfind.commands.options import FIRST, FORECAST, MEASURING, SIZE, command_options
from tputfind.declaration import SECTIONS
from tputfind.errors import BadRequest
from tputfind.options import CALLED
from tputfind.record.spec import Spec, read_spec
from tputfind.sizing.planner.question import BATCHERS, ROUTINGS

CHOOSING = [option for option in MEASURING if isinstance(option.takes, tuple)]


def shown(*command: str) -> list[str]:
    done = CliRunner().invoke(main, [*command, "--help"], prog_name="tputfind", terminal_width=80)
    assert done.exit_code == 0
    return done.output.splitlines()


def test_the_first_help_fits_a_screen_and_leads_on():
    lines = shown()

    assert len(lines) <= 40
    assert any("tputfind run --help shows every option" in line for line in lines)
    assert [line.split()[0] for line in lines if re.match(r"  [a-z]+  ", line)] == list(COMMANDS)
    assert all(any(line.startswith(f"  {option.flag} ") for line in lines) for option in FIRST)
    assert sum(line.startswith("  tputfind ") for line in lines[-4:]) == 3


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_no_line_of_help_is_longer_than_80_columns_or_cut_off(command):
    lines = shown(*command)

    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.rstrip().endswith("...") or line != line.rstrip()]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_stands_once_in_help_and_sections_are_in_order(name):
    lines = shown(name)
    typed = [line.split()[0] for line in lines if re.match(r"  --[a-z-]+( |$)", line)]
    titles = [line.rstrip(":") for line in lines if line.rstrip(":") in SECTIONS]

    assert sorted(typed) == sorted(option.flag for option in command_options(COMMANDS[name].options))
    assert titles == sorted(titles, key=SECTIONS.index)
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_default_stands_on_one_line(name):
    whole = " ".join(shown(name))
    for option in COMMANDS[name].options:
        assert not option.default or f"[default: {option.default}]" in whole


@pytest.mark.parametrize(
    "example", [example for command in COMMANDS.values() for example in command.examples] + shown()[-3:]
)
def test_the_examples_of_help_can_be_typed(example):
    program, *words = shlex.split(example.partition(">")[0])
    arguments = words if words[0] in COMMANDS else ["run", *words]
    context = main.commands[arguments[0]].make_context(arguments[0], arguments[1:])

    assert program == "tputfind"
    asked = {option.name: context.params[option.name] for option in MEASURING if option.name in context.params}
    if arguments[0] in ("run", "clocks", "forecast"):
        one = {name: value.split(",")[0] if isinstance(value, str) else value or None for name, value in asked.items()}
        read_spec("m", one)


@pytest.mark.parametrize("option", CHOOSING, ids=lambda option: option.name)
def test_the_choices_of_help_are_read_in_upper_and_lower_case(option):
    for choice in option.takes:
        word = choice.replace(":N", ":1")
        training = {"parallel": {"phase": "train", "gpus": 2}, "optimizer": {"phase": "train"}}.get(option.name, {})
        read = [read_spec("m", {option.name: each, **training}) for each in (word, word.upper(), f" {word} ")]
        assert {getattr(spec, option.name) for spec in read} == {word}


@pytest.mark.parametrize("option", CHOOSING, ids=lambda option: option.name)
def test_default_in_help_is_default_of_spec(option):
    default = getattr(Spec(model="m"), option.name)

    assert option.default == {"allocator": "the environment's", "optimizer": "sgd"}.get(option.name, default or "")


def test_options_of_other_tools_map_to_existing_flags():
    flags = {word for name in COMMANDS for line in shown(name) for word in line.split() if word.startswith("--")}
    led_to = {option.partition(" ")[0] for option in CALLED}

    assert led_to - flags == {"OMP_NUM_THREADS", "tputfind"}
    assert all(" " not in name and not name.startswith("-") for names in CALLED.values() for name in names.split())


def test_help_has_the_batchers_and_routings_that_are_simulated():
    taken = {option.name: option.takes for option in SIZE}

    assert (taken["batcher"], taken["routing"]) == (BATCHERS, ROUTINGS)


def test_only_a_run_takes_lists_of_choices():
    lists = ["device", "dtype", "layout", "mode", "instances", "allocator"]
    assert [option.name for option in MEASURING if option.lists] == lists
    assert not [option.name for option in FORECAST if option.lists]
    with pytest.raises(BadRequest, match="'fp16,bf16' is not one of"):
        read_spec("m", {"dtype": "fp16,bf16"})
