"""A user's mistakes and faults: one clear line and the right exit code."""

import os
import shlex
import signal
import subprocess
import sys

import pytest
from support.command import ENVIRONMENT, QUICK, command, run_program
from support.folders import MODELS


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["resnet5O"], 2, "did you mean resnet50"),
        (["fcn_resnet5O"], 2, "did you mean fcn_resnet50"),
        (["none.py:make"], 2, "there is no file none.py"),
        (["none.py"], 2, "there is no file none.py"),
        (["torchvision:resnet18"], 2, "torchvision has no 'resnet18' (did you mean resnet18?)"),
        (["torchvision:resnet5O"], 2, "did you mean resnet50 or"),
        (["small.onnx"], 2, "small.onnx: ONNX is not measured, only PyTorch is"),
        (["small.tflite"], 2, "TensorFlow Lite is not measured"),
        (["small.engine"], 2, "a TensorRT engine is not measured"),
        (["small.GGUF"], 2, "GGUF is not measured"),
        (["small.h5"], 2, "a Keras model is not measured"),
        (["small.keras"], 2, "a Keras model is not measured"),
        (["small.pkl"], 2, "a pickle is not loaded: it can run any code"),
        (["small.joblib"], 2, "a joblib file is not loaded: it can run any code"),
        ([f"{MODELS}/script.py:main", "--input-size", "4"], 2, "main is what script.py calls as a script"),
        ([f"{MODELS}/script.py:main", "--input-size", "4"], 2, "script.py also defines Net, make, nothing)"),
        ([f"{MODELS}/script.py:nothing", "--input-size", "4"], 2, "script.py:nothing returned nothing"),
        ([f"{MODELS}/script.py"], 2, "script.py:FACTORY; it defines Net, make, nothing, main)"),
        ([f"{MODELS}/plian.py:mebibytes"], 2, f"(did you mean {MODELS}/plain.py:mebibytes?)"),
        (["no_such_package:make"], 2, "there is no package or module 'no_such_package'"),
        ([f"{MODELS}/plain.py"], 2, "does not say which factory"),
        ([f"{MODELS}/plain.py:mebibyte"], 2, "did you mean mebibytes"),
        ([f"{MODELS}/plain.py:not_callable"], 2, "cannot be called"),
        ([f"{MODELS}/plain.py:returns_text"], 2, "returned str, not a module"),
        ([f"{MODELS}/plain.py:inputs_and_module"], 2, "returned tuple, not a module"),
        ([f"{MODELS}/plain.py:module_and_loss", "--input-size", "8"], 2, "returned tuple, not a module"),
        ([f"{MODELS}/plain.py:model_on_two_devices"], 2, "spreads each batch over 2 devices, of which one is measured"),
        ([f"{MODELS}/plain.py:module_alone"], 2, "--input-size"),
        (
            [f"{MODELS}/plain.py:inputs_of_one_size", "--batch-sizes", "1,16"],
            5,
            "are the same at batch 1 and batch 2: 1x16",
        ),
        (["resnet18", "--batches", "0", "--warmup", "-1"], 2, "--warmup: -1"),
        (["resnet18", "--no-such-option"], 2, "--no-such-option"),
        (["resnet18", "--memory-limit", "900TiB"], 2, "--memory-limit is more than"),
        (["resnet18", "--output", "/dev/null/results"], 2, "cannot write in /dev/null/results"),
        (["resnet18", "--save", "."], 2, "the ending says what is written: .json, .csv, .md, .html, .svg or .png"),
        (["resnet18", "--save", "-"], 2, "-.csv is a CSV on the standard output"),
        (["resnet18", "--save", "a.csv", "--save", "./a.csv"], 2, "are the same file"),
        (["resnet18", "--device", "cuda:99"], 3, "there is no cuda:99 here"),
        (
            ["resnet18", "--max-noise", "1%", "--processes", "1"],
            2,
            "one process does not show how much processes differ",
        ),
        (["resnet18", "--max-noise", "150%"], 2, "--max-noise: '150%' is not between 0 and 100 %"),
        (["resnet18", "--max-noise", "0.1%"], 2, "is not above 0.2%, the precision of any figure here"),
        (["resnet18", "--processes", "101"], 2, "--processes: 101 is not between 1 and 100"),
        (["resnet18", "--max-seconds", "-1"], 2, "--max-seconds: '-1' is below zero"),
        (["resnet18", "--device", "cpu", "--transfer", "h2d"], 2, "on cpu no copies between host and device are timed"),
        (["resnet18", "--device", "cpu", "--dtype", "tf32"], 3, "cpu cannot do --dtype tf32"),
    ],
)
def test_impossible_request_gives_one_clear_line_and_its_exit_code(tmp_path, ask, arguments, status, expected):
    ran = ask(tmp_path, *arguments, "--quiet")

    assert ran.status == status, ran.err
    assert expected in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert not list((tmp_path / "results").glob("*")) if (tmp_path / "results").exists() else True


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("plain.py:fails", "ValueError: this model was made for 0 samples and got 1"),
        ("plain.py:raises", "KeyError: 'weights'"),
        ("plain.py:runs_out_of_something_else", "RuntimeError: the queue ran out of memory slots"),
        ("plain.py:exits", "SystemExit: 0"),
        ("plain.py:fails_later", "ValueError: the sixth step"),
        ("does_not_import.py:make", "RuntimeError: the mistake in this file"),
    ],
)
def test_a_model_that_fails_shows_its_own_traceback_and_exits_with_5(tmp_path, ask, factory, expected):
    ran = ask(tmp_path, f"{MODELS}/{factory}", "--quiet", "--max-batch", 2)

    assert ran.status == 5
    assert f'{factory.partition(":")[0]}", line' in ran.err
    assert "tputfind/measure" not in ran.err
    assert ran.err.count(expected) == 2, ran.err  # the end of the traceback, and the line


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("says_nothing", "fails at batch 1: SaysNothing"),
        ("says_what_no_text_holds", "fails at batch 1: ValueError: half a character \\ud800"),
        ("leaves", "fails at batch 1: exited with status 0 before it had answered"),
    ],
)
def test_oddly_failing_model_fails_and_is_not_called_too_large(tmp_path, ask, factory, expected):
    ran = ask(tmp_path, f"{MODELS}/plain.py:{factory}", "--quiet")

    assert ran.status == 5, ran.err
    assert expected in ran.err
    assert "memory" not in ran.err


def test_endless_message_is_cut_and_terminal_escapes_removed(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:says_a_lot", "--quiet")

    assert ran.status == 5
    assert len(ran.err) < 50_000
    assert "\x1b" not in ran.err


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(tmp_path, closed):
    asked = shlex.join([*command(), f"{MODELS}/plain.py:keyword_inputs", "--batch-sizes", "2", *map(str, QUICK)])
    done = subprocess.run(["bash", "-c", f"{asked} {closed}"], cwd=tmp_path, env=ENVIRONMENT, check=False)

    assert done.returncode == 0
    assert len(list((tmp_path / "results").iterdir())) == 2


def test_unprintable_report_is_an_error(tmp_path):
    asked = shlex.join([*command(), f"{MODELS}/plain.py:keyword_inputs", "--batch-sizes", "2", *map(str, QUICK)])
    done = run_program(["bash", "-c", f"{asked} > /dev/full"], tmp_path)

    assert done.returncode == 2
    assert "cannot print: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list((tmp_path / "results").iterdir())) == 2


OF_300 = [
    (form, 300) for form in ("{}", "{}.py:make", "{here}/mine.py:{}", "{}:make", "timm:{}", "hf:{}", "{}.pt", "{}.py")
]


@pytest.mark.parametrize(("form", "length"), [*OF_300, ("hf:{}", 4000), ("{}", 100_000)])
def test_unknown_name_of_any_length_is_one_short_line(tmp_path, ask, form, length):
    (tmp_path / "mine.py").write_text("")

    ran = ask(tmp_path, form.format("x" * length, here=tmp_path), "--quiet")

    assert ran.status == 2
    assert ran.err.startswith("tputfind: ")
    assert ran.err.count("\n") == 1
    assert len(ran.err) < 1000


def test_weights_of_a_name_that_no_file_can_have_are_no_file(tmp_path, ask):
    ran = ask(tmp_path, "resnet18", "--weights", "x" * 300, "--quiet")

    assert ran.status == 2
    assert "is neither a file nor weights of resnet18" in ran.err


@pytest.mark.parametrize("pattern", ["[", "[!", "", "\x1b[31mred", "x" * 100_000, "hf:["])
def test_a_pattern_that_no_name_matches_is_one_short_line(tmp_path, ask, pattern):
    ran = ask(tmp_path, "models", pattern)

    assert ran.status == 2
    assert ran.err.startswith("tputfind: no model's name matches ")
    assert (ran.err.count("\n"), "\x1b" in ran.err, len(ran.err) < 200) == (1, False, True)


def test_record_of_overlong_model_name_has_valid_file_name(tmp_path, ask):
    factory = f"make_{'x' * 3000}"
    (tmp_path / "mine.py").write_text(f"from torch import nn\ndef {factory}(): return nn.Identity()\n")

    ran = ask(tmp_path, f"mine.py:{factory}", "--input-size", 2, "--batch-sizes", 1, "--device", "cpu", *QUICK)

    assert ran.status == 0, ran.err
    assert ran.record().spec.model == f"mine.py:{factory}"


@pytest.mark.parametrize(
    ("torch", "said"),
    [
        (
            "raise ImportError('libcudart.so.13: cannot open')",
            "torch does not import: libcudart.so.13: cannot open (install ",
        ),
        (
            "import os; os._exit(7)",
            "the measuring process does not start: exited with status 7 before it had answered (install ",
        ),
        (
            "import os; os.kill(os.getpid(), 9)",
            "the measuring process does not start: killed by SIGKILL (free memory of the host, and run it again)",
        ),
    ],
)
def test_broken_torch_is_reported_in_one_line_with_advice(tmp_path, torch, said):
    (tmp_path / "torch.py").write_text(torch)
    paths = os.pathsep.join((str(tmp_path), ENVIRONMENT["PYTHONPATH"]))
    done = run_program([*command(), "devices"], environment=ENVIRONMENT | {"PYTHONPATH": paths})

    assert done.returncode == 2
    assert done.stderr.startswith(f"tputfind: {said}")
    assert done.stderr.count("\n") == 1


def test_a_deleted_working_directory_is_named_and_torch_is_not_blamed(tmp_path):
    shell = f"cd {tmp_path}; rmdir {tmp_path}; {shlex.join([*command(), 'devices'])}"
    done = run_program(["bash", "-c", shell])

    assert done.returncode == 2
    assert done.stderr == "tputfind: the working directory was deleted (run it in one that exists)\n"


PRINTS = [["models"], ["devices"], ["--help"], ["models", "--help"], ["--version"]]


def piped(folder, asked, into) -> subprocess.CompletedProcess:
    shell = f"set -o pipefail; {shlex.join([*command(), *asked])} {into}"
    return run_program(["bash", "-c", shell], folder)


@pytest.mark.parametrize("asked", PRINTS, ids=" ".join)
def test_output_to_a_full_device_is_reported_in_one_line(tmp_path, asked):
    done = piped(tmp_path, asked, "> /dev/full")

    assert done.stderr == "tputfind: cannot print: No space left on device\n"
    assert done.returncode == 2


@pytest.mark.parametrize("into", ["| true", "2>&1 >&- | true", ">&-", "2>&-", "2> /dev/full"])
@pytest.mark.parametrize("asked", [["models"], ["--version"]], ids=" ".join)
def test_closed_or_unread_stream_causes_no_error(tmp_path, asked, into):
    done = piped(tmp_path, asked, into)

    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize("into", ["2> /dev/full", "2>&-", "2>&1 | true"])
@pytest.mark.parametrize("asked", [["models", "nosuch"], ["--no-such-option"]], ids=" ".join)
def test_exit_code_of_a_mistake_is_kept_without_stderr(tmp_path, asked, into):
    assert piped(tmp_path, asked, into).returncode == 2


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_interruption_while_it_imports_is_one_line(tmp_path, number):
    """The folder of `python -m` comes first on the path, so this file takes the place of the current import."""
    (tmp_path / "click.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.{number})\n")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a signal ignored here would be ignored by the child
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    done = run_program([sys.executable, "-m", "tputfind", "--help"], tmp_path)

    assert done.stderr == "tputfind: interrupted\n"
    assert (done.stdout, done.returncode) == ("", 130)


def test_missing_import_in_user_package_is_shown_as_such(tmp_path, ask):
    (tmp_path / "mine.py").write_text("import not_installed_anywhere\n")

    ran = ask(tmp_path, "mine:make", "--quiet")

    assert ran.status == 5
    assert "No module named 'not_installed_anywhere'" in ran.err


def test_requested_traceback_keeps_the_exit_code(tmp_path, ask):
    ran = ask(tmp_path, "resnet5O", "--traceback")

    assert ran.status == 2
    assert "Traceback" in ran.err


def test_a_model_that_fails_does_not_take_the_others_with_it(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/plain.py:fails", f"{MODELS}/plain.py:keyword_inputs", "--batch-sizes", 2, *QUICK)

    assert ran.status == 5
    assert [row.status for row in ran.record("plain-keyword_inputs-*").rows] == ["ok"]


def test_mismatched_torchvision_is_named_with_installation_advice(tmp_path):
    package = tmp_path / "torchvision"
    package.mkdir()
    # Like torchvision without its compiled part: register for a missing operator.
    (package / "__init__.py").write_text(
        "import torch\ntorch.library.register_fake('torchvision::nms')(lambda: None)\n"
    )
    environment = ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}

    done = run_program([*command(), "resnet18"], tmp_path, environment)

    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tputfind:")]
    assert "operator torchvision::nms does not exist" in line
    assert "pip install" in line
