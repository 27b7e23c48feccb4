from __future__ import annotations

import os
from pathlib import Path

import pytest

from tputfind.errors import BadRequest
from tputfind.files import check_folder, check_writable, slug, write_new, write_whole


def test_what_a_name_is_made_of_stays_in_the_folder():
    names = {slug("NVIDIA H200"), slug("Intel(R) Xeon(R) Processor"), slug("../..")}

    assert names == {"nvidia-h200", "intel-r-xeon-r-processor", "unnamed"}


def test_a_second_run_gets_another_name_and_the_first_files_stay(tmp_path):
    paths = [write_new(tmp_path, "resnet50-fp16-gpu", str(number).encode()) for number in range(6)]

    assert len(set(paths)) == 6
    assert [path.read_bytes() for path in paths] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert len(list(tmp_path.iterdir())) == 6


def test_a_file_system_without_hard_links_will_do(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    paths = [write_new(tmp_path, "resnet50", content) for content in (b"first", b"second")]

    assert [path.read_bytes() for path in paths] == [b"first", b"second"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_csv_that_lies_there_alone_is_not_taken_over(tmp_path):
    (tmp_path / "resnet50.csv").write_text("mine")

    assert write_new(tmp_path, "resnet50", b"") != tmp_path / "resnet50.json"


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "record.json"
    write_whole(path, b"old")
    write_whole(path, b"new")

    assert path.read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path):
    path = tmp_path / "record.json"
    path.write_bytes(b"old")
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    (tmp_path / f".record.json.{os.getpid()}.tmp").symlink_to(full)

    with pytest.raises(BadRequest, match="No space left"):
        write_whole(path, b"new")

    assert path.read_bytes() == b"old"


def test_a_file_is_no_folder_and_a_folder_is_no_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("")

    with pytest.raises(BadRequest, match="cannot write in"):
        check_folder(file / "results")
    with pytest.raises(BadRequest, match="it is a folder"):
        check_writable(tmp_path)


def test_a_missing_folder_is_made(tmp_path):
    check_folder(tmp_path / "a" / "b")

    assert not list((tmp_path / "a" / "b").iterdir())
