"""Words that a shell offers at Tab, through the environment variables of its completion script."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import ENVIRONMENT, command, run_program


def offered(*words: str, shell: str = "bash") -> list[str]:
    """Return the words offered for the last word, with their kind as prefix: ``plain,fp16``."""
    place = words[-1] if shell == "fish" else str(len(words))
    asked = {"COMP_WORDS": " ".join(("tputfind", *words)), "COMP_CWORD": place}
    return answer({"_TPUTFIND_COMPLETE": f"{shell}_complete", **asked}).split()


pytestmark = pytest.mark.skipif(len(command()) > 1, reason="a shell completes the installed command")


def answer(variables: dict[str, str]) -> str:
    done = subprocess.run(command(), env=ENVIRONMENT | variables, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("resnet1",), ["file,resnet1", "plain,resnet101", "plain,resnet152", "plain,resnet18"]),
        (("tim",), ["file,tim", "plain,timm:"]),
        (("repor",), ["file,repor", "plain,report"]),
        (("--dtype", "f"), ["plain,fp32", "plain,fp16", "plain,fp8"]),
        (("--dtype", "FP16,b"), ["plain,FP16,bf16"]),
        (("resnet18", "--layout", "nchw,"), ["plain,nchw,nhwc"]),
        (("resnet18", "--dtype", "=", "t"), ["plain,tf32"]),
        (("--no-save", "squeezenet1_"), ["file,squeezenet1_", "plain,squeezenet1_0", "plain,squeezenet1_1"]),
        (("--max-s",), ["plain,--max-seconds"]),
        (("--vers",), ["plain,--version"]),
        (("clocks", "resnet18", "--dtype", "fp16,"), []),
        (("size", "--batcher", "t"), ["plain,triton"]),
        (("size", "results/"), ["file,results/"]),
        (("compare", "old.json", "n"), ["file,n"]),
        (("run", "--output", "re"), ["dir,re"]),
        (("run", "--resume", "re"), ["file,re"]),
        (("run", "--weights", "D"), ["file,D", "plain,DEFAULT"]),
        (("run", "--weights", ""), ["plain,DEFAULT"]),
        (("run", "--device", "c"), ["plain,cpu", "plain,cuda"]),
        (("models", "vit_h"), ["plain,vit_h_14"]),
        (("timm", ":", "vit_b"), []),
        (("run", "--max-batch", ""), []),
    ],
)
def test_bash_completion_offers_possible_words(words, expected):
    assert offered(*words) == expected


def test_completion_of_empty_word_offers_the_commands():
    assert offered("") == [
        f"plain,{name}"
        for name in ("run", "tune", "clocks", "forecast", "size", "report", "compare", "models", "devices", "schema")
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_offered_the_same(shell):
    assert "resnet101" in " ".join(offered("resnet1", shell=shell))
    assert "bf16" in " ".join(offered("--dtype", "b", shell=shell))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell):
    assert "_TPUTFIND_COMPLETE" in answer({"_TPUTFIND_COMPLETE": f"{shell}_source"})


def test_bash_itself_completes_a_model_by_that_script():
    script = answer({"_TPUTFIND_COMPLETE": "bash_source"})
    asked = 'COMP_WORDS=(tputfind resnet1); COMP_CWORD=1; _tputfind_completion "$0"; echo "${COMPREPLY[@]}"'
    done = run_program(["bash", "-c", f"{script}\n{asked}", command()[0]])

    assert done.stdout == "resnet101 resnet152 resnet18\n"


@pytest.mark.skipif(shutil.which("fish") is None, reason="takes the shell fish")
def test_fish_itself_completes_a_list_by_that_script():
    script = answer({"_TPUTFIND_COMPLETE": "fish_source"})
    asked = "complete -C 'tputfind resnet18 --dtype fp16,b'"
    searched = ENVIRONMENT | {"PATH": f"{Path(command()[0]).parent}{os.pathsep}{ENVIRONMENT['PATH']}"}
    done = run_program(["fish", "-c", f"{script}\n{asked}"], environment=searched)

    assert done.stdout == "fp16,bf16\n"


def test_completion_imports_no_heavy_package():
    program = (
        "import sys\n"
        "from tputfind.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'torchvision', 'pandas', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    asked = {"_TPUTFIND_COMPLETE": "bash_complete", "COMP_WORDS": "tputfind resnet1", "COMP_CWORD": "1"}
    done = run_program([sys.executable, "-c", program], environment=ENVIRONMENT | asked)

    assert done.returncode == 0, done.stderr
    assert "plain,resnet101" in done.stdout
