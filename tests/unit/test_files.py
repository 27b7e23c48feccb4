from __future__ import annotations

import os
from pathlib import Path

import pytest

from tputfind.errors import BadRequest
from tputfind.files import check_folder, check_writable, claim_stem, slug, write_whole


def test_a_name_is_claimed_once():
    names = {slug("NVIDIA H200"), slug("Intel(R) Xeon(R) Processor"), slug("../..")}

    assert names == {"nvidia-h200", "intel-r-xeon-r-processor", "unnamed"}


def test_a_second_run_gets_another_name_and_the_first_files_stay(tmp_path):
    first = claim_stem(tmp_path, "resnet50-fp16-gpu")
    write_whole(Path(f"{first}.json"), b"first")
    others = [claim_stem(tmp_path, "resnet50-fp16-gpu") for _ in range(5)]

    assert len({first, *others}) == 6
    assert Path(f"{first}.json").read_bytes() == b"first"


def test_a_csv_that_lies_there_alone_is_not_taken_over(tmp_path):
    (tmp_path / "resnet50.csv").write_text("mine")

    assert claim_stem(tmp_path, "resnet50").name != "resnet50"


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
