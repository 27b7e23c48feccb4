"""Files of a model that travel to the nodes of a cluster."""

from pathlib import Path

import pytest

from tputfind.errors import BadRequest
from tputfind.record.spec import Spec
from tputfind.runners.cluster import stage_files


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Create a current folder with models of several forms, their imports and weights, and unrelated files."""
    folder = tmp_path / "here"
    (folder / "models" / "parts").mkdir(parents=True)
    (folder / "models" / "net.py").write_text("import torch\nimport layers\nfrom parts.head import Head\n")
    (folder / "models" / "layers.py").write_text("import missing\n")
    (folder / "models" / "parts" / "__init__.py").write_text("")
    (folder / "models" / "parts" / "head.py").write_text("raise SystemExit\n")
    (folder / "models" / "secret.py").write_text("")
    (folder / "bert").mkdir()
    for name in ("weights.pth", "saved.pt2", "bert/config.json"):
        (folder / name).write_bytes(b"w")
    (folder / "broken.py").write_text("def make(:\n")
    monkeypatch.chdir(folder)
    return folder


def sent(tmp_path, spec):
    away = tmp_path / "away"
    away.mkdir()
    there = stage_files(spec, away)
    return there, sorted(str(path.relative_to(away)) for path in away.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("spec", "files"),
    [
        (
            Spec(model="models/net.py:make"),
            ["models/layers.py", "models/net.py", "models/parts/__init__.py", "models/parts/head.py"],
        ),
        (Spec(model="models.parts.head:make"), ["models/parts/__init__.py", "models/parts/head.py"]),
        (Spec(model="torchvision.models:resnet18"), []),
        (Spec(model="broken.py:make"), ["broken.py"]),
        (Spec(model="saved.pt2"), ["saved.pt2"]),
        (Spec(model="resnet18", weights="weights.pth"), ["weights.pth"]),
        (Spec(model="resnet18", weights="DEFAULT"), []),
        (Spec(model="hf:bert"), ["bert/config.json"]),
    ],
    ids=["factory", "package", "installed", "unparsable", "saved", "weights", "no file", "hugging face"],
)
def test_only_the_files_of_a_model_and_its_imports_travel(here, tmp_path, spec, files):
    assert sent(tmp_path, spec) == (spec, files)


def test_nested_relative_and_namespace_imports_are_found(here, tmp_path):
    (here / "models" / "net.py").write_text("def make():\n    import parts.deep.one\n")
    (here / "models" / "parts" / "deep").mkdir()
    (here / "models" / "parts" / "deep" / "one.py").write_text("from . import two\nfrom ..head import Head\n")
    (here / "models" / "parts" / "deep" / "two.py").write_text("def broken(:\n")

    _, files = sent(tmp_path, Spec(model="models/net.py:make"))

    parts = ["parts/__init__.py", "parts/deep/one.py", "parts/deep/two.py", "parts/head.py"]
    assert files == ["models/net.py", *(f"models/{part}" for part in parts)]


def test_file_from_elsewhere_stays_together_with_its_imports(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "here" / "models" / "parts")
    for name in ("../net.py", str(here / "models" / "net.py")):
        where = tmp_path / str(len(name))
        where.mkdir()
        there, files = sent(where, Spec(model=f"{name}:make"))
        home = there.model.removesuffix("/net.py:make")
        assert f"{home}/net.py" in files
        assert f"{home}/layers.py" in files
        assert ".." not in home


def test_file_that_cannot_be_copied_is_refused(here):
    with pytest.raises(BadRequest, match=r"cannot copy models/net\.py for the nodes to weights\.pth: "):
        stage_files(Spec(model="models/net.py:make"), Path("weights.pth"))
