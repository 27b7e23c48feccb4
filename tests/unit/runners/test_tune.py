"""Requests of ``tune``: what is refused before the race."""

import pytest

import tputfind
from tputfind.errors import BadRequest
from tputfind.runners import tune


def test_folder_that_cannot_be_written_is_refused_before_the_race(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(tune, "measure", None)

    with pytest.raises(BadRequest, match="cannot write in"):
        tputfind.tune("resnet18", output=tmp_path / "file" / "folder")
