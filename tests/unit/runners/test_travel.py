"""Files of a model that travel to the nodes of a cluster."""

from pathlib import Path

import pytest

from tputfind.errors import BadRequest
from tputfind.record.spec import Spec
from tputfind.runners.cluster import stage_files


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Create a current folder with a Python model, its imports, and unrelated files."""
    folder = tmp_path / "here"
    (folder / "models" / "parts").mkdir(parents=True)
    (folder / "models" / "net.py").write_text("import torch\nimport layers\nfrom parts.head import Head\n")
    (folder / "models" / "layers.py").write_text("import missing\n")
    (folder / "models" / "parts" / "__init__.py").write_text("")
    (folder / "models" / "parts" / "head.py").write_text("raise SystemExit\n")
    (folder / "models" / "secret.py").write_text("")
    (folder / "weights.pth").write_bytes(b"w")
    monkeypatch.chdir(folder)
    return folder


def sent(tmp_path, spec):
    away = tmp_path / "away"
    away.mkdir()
    there = stage_files(spec, away)
    return there, sorted(str(path.relative_to(away)) for path in away.rglob("*") if path.is_file())


def test_factory_travels_only_with_its_imports(here, tmp_path):
    there, files = sent(tmp_path, Spec(model="models/net.py:make"))

    assert there.model == "models/net.py:make"
    assert files == ["models/layers.py", "models/net.py", "models/parts/__init__.py", "models/parts/head.py"]


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


def test_local_package_travels_and_installed_package_does_not(here, tmp_path):
    assert sent(tmp_path, Spec(model="models.parts.head:make"))[1] == [
        "models/parts/__init__.py",
        "models/parts/head.py",
    ]
    (tmp_path / "away").rename(tmp_path / "before")
    assert sent(tmp_path, Spec(model="torchvision.models:resnet18"))[1] == []


def test_weights_saved_models_and_folders_of_hugging_face_travel(here, tmp_path):
    (here / "saved.pt2").write_bytes(b"m")
    (here / "bert").mkdir()
    (here / "bert" / "config.json").write_text("{}")
    for number, (spec, expected) in enumerate(
        [
            (Spec(model="saved.pt2"), ["saved.pt2"]),
            (Spec(model="resnet18", weights="weights.pth"), ["weights.pth"]),
            (Spec(model="hf:bert"), ["bert/config.json"]),
            (Spec(model="resnet18", weights="DEFAULT"), []),
        ]
    ):
        (tmp_path / str(number)).mkdir()
        assert sent(tmp_path / str(number), spec) == (spec, expected)


def test_unparsable_file_travels_alone(here, tmp_path):
    (here / "broken.py").write_text("def make(:\n")

    assert sent(tmp_path, Spec(model="broken.py:make"))[1] == ["broken.py"]


def test_file_that_cannot_be_copied_is_refused(here):
    with pytest.raises(BadRequest, match=r"cannot copy models/net\.py for the nodes to weights\.pth: "):
        stage_files(Spec(model="models/net.py:make"), Path("weights.pth"))
