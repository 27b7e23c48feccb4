"""Common mistakes in model files, and the advice of tputfind."""

import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tputfind.errors import BadRequest
from tputfind.worker.models.user_code import NO_EXIT, NO_MAIN, check_takes_nothing, module_name, without_arguments

QUICK = ("--max-batch", 2, "--max-seconds", "1s", "--device", "cpu", "--no-save", "--quiet")
NET = "from torch import nn\ndef make(): return nn.Linear(4, 4)\n"
PARSES = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--data', required=True)\n"
COMPLAINT = "net.py: error: the following arguments are required: --data"


@pytest.fixture
def asked(ask):
    """Return a function that measures a model in a folder, and returns the exit status and the error text."""

    def measure(folder: Path, model: str) -> tuple[int, str]:
        ran = ask(folder, model, "--input-size", 4, *QUICK)
        assert "Traceback" not in ran.err
        return ran.status, " ".join(ran.err.split())

    return measure


def test_file_that_its_own_helper_imports_is_imported_once(tmp_path, asked):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "import helper\n"
        "class Net(nn.Linear): pass\n"
        "def make(): return helper.checked(Net(4, 4))\n"
    )
    (tmp_path / "helper.py").write_text(
        "def checked(net):\n"
        "    import net as file\n"
        "    assert isinstance(net, file.Net), 'another class'\n"
        "    return net\n"
    )

    status, said = asked(tmp_path, "net.py:make")

    assert status == 0, said


def test_module_made_on_import_is_refused_with_advice(tmp_path, asked):
    (tmp_path / "net.py").write_text("from torch import nn\nNET = nn.Linear(4, 4)\n")

    status, said = asked(tmp_path, "net.py:NET")

    assert status == 2
    assert "net.py:NET is a module that was made as net.py was imported" in said
    assert "name a function that makes and returns it" in said


def test_a_class_that_takes_arguments_is_refused_with_their_names(tmp_path, asked):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, width, classes, *rest, bias=True, **more): super().__init__()\n"
    )

    status, said = asked(tmp_path, "net.py:Net")

    told = "net.py:Net takes arguments (width, classes): name a function without arguments that returns Net(...)"
    assert (status, said) == (2, f"tputfind: {told}")


def test_file_with_relative_imports_is_imported_from_its_package(tmp_path, asked):
    package = tmp_path / "mine" / "nets"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package.parent / "layers.py").write_text("from torch import nn\nLayer = nn.Linear\n")
    source = "from ..layers import Layer\nfrom mine import layers\ndef make(): return layers.Layer(4, 4)\n"
    (package / "net.py").write_text(source)

    assert asked(tmp_path, "mine/nets/net.py:make") == (0, "")
    assert asked(package, "net.py:make") == (0, "")
    assert asked(tmp_path, "mine.nets.net:make")[0] == 0


def test_a_file_that_exports_a_model_as_it_is_imported_runs(tmp_path, asked):
    exports = "import torch\ntorch.export.export(torch.nn.Linear(4, 4), (torch.randn(2, 4),))\n"
    (tmp_path / "net.py").write_text(f"{exports}{NET}")

    assert asked(tmp_path, "net.py:make") == (0, "")


def test_import_error_of_another_module_is_shown_unchanged(tmp_path, ask):
    (tmp_path / "helper.py").write_text("from .layers import Layer\n")
    (tmp_path / "net.py").write_text(f"import helper\n{NET}")

    ran = ask(tmp_path, "net.py:make", "--input-size", 4, *QUICK)

    assert ran.status == 5
    assert "attempted relative import with no known parent package" in ran.err


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            f"{PARSES}parser.parse_args()\n{NET}",
            f"net.py calls sys.exit(2) as it is imported: {COMPLAINT} ({NO_MAIN})",
        ),
        (f"import sys\n{NET}sys.exit('no data here')\n", "net.py calls sys.exit() as it is imported: no data here"),
        (f"import sys\n{NET}sys.exit()\n", "net.py calls sys.exit() as it is imported (put what parses"),
        (
            f"{PARSES}def make(): parser.parse_args()\n",
            f"net.py:make calls sys.exit(2) as it is called: {COMPLAINT} ({NO_EXIT})",
        ),
    ],
)
def test_code_that_ends_python_is_refused_with_its_own_complaint(tmp_path, asked, source, told):
    (tmp_path / "net.py").write_text(source)

    status, said = asked(tmp_path, "net.py:make")

    assert status == 2
    assert said.startswith(f"tputfind: {told}")


def test_file_parsing_optional_arguments_is_measured(tmp_path, asked):
    optional = PARSES.replace("required=True", "default=1")
    (tmp_path / "net.py").write_text(f"{optional}assert parser.parse_args().data == 1\n{NET}")

    assert asked(tmp_path, "net.py:make")[0] == 0


@pytest.mark.parametrize("arguments", ["net", "a, b", "a, /, b, *, c"])
def test_check_takes_nothing_refuses_arguments_without_default(arguments):
    with pytest.raises(BadRequest) as refusal:
        check_takes_nothing("net.py:make", eval(f"lambda {arguments}: None"))

    names = ", ".join(name for name in arguments.split(", ") if name.isidentifier())
    assert f"net.py:make takes arguments ({names})" in refusal.value.message


@pytest.mark.parametrize("factory", [lambda a=1, *b, **c: a, dict, print, time.time, type("Net", (), {})])
def test_check_takes_nothing_accepts_callables_without_required_arguments(factory):
    check_takes_nothing("net.py:make", factory)


def test_without_arguments_keeps_stderr_and_restores_sys_argv(capsys):
    arguments = list(sys.argv)
    with without_arguments("net.py", "as it is imported", ""):
        print("warned", file=sys.stderr)
        seen = list(sys.argv)

    assert (seen, sys.argv) == (["net.py"], arguments)
    assert capsys.readouterr().err == "warned\n"


NAMES = st.from_regex(r"[a-z]{1,6}", fullmatch=True).filter(lambda name: name != "__init__")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(outside=st.lists(NAMES, max_size=2), inside=st.lists(NAMES, max_size=3), stem=NAMES, levels=st.integers(1, 3))
def test_module_name_leads_from_its_folder_to_the_file(tmp_path_factory, outside, inside, stem, levels):
    base = tmp_path_factory.mktemp("base").joinpath(*outside)
    folder = base.joinpath(*inside)
    folder.mkdir(parents=True, exist_ok=True)
    for depth in range(1, len(inside) + 1):
        base.joinpath(*inside[:depth], "__init__.py").touch()

    start, name = module_name(folder / f"{stem}.py", levels)

    assert start.joinpath(*name.split(".")).with_suffix(".py") == folder / f"{stem}.py"
    assert name.count(".") == max(len(inside), levels)
