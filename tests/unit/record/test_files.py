import errno
import os
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.records import example

from tputfind.errors import BadRecord, BadRequest
from tputfind.record.files import (
    check_folder,
    check_writable,
    load,
    path_of,
    slug,
    write_new,
    write_whole,
)


def test_slug_of_any_name_stays_in_the_folder():
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


def test_write_without_hard_links_on_full_disk_leaves_no_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(Path, "read_bytes", full)
    with pytest.raises(BadRequest, match="No space left"):
        write_new(tmp_path, "resnet50", b"first")

    assert list(tmp_path.iterdir()) == []


def test_a_csv_that_lies_there_alone_is_not_taken_over(tmp_path):
    (tmp_path / "resnet50.csv").write_text("mine")

    assert write_new(tmp_path, "resnet50", b"") != tmp_path / "resnet50.json"


def test_write_whole_replaces_the_file_without_leftovers(tmp_path):
    path = tmp_path / "record.json"
    write_whole(path, b"old")
    write_whole(path, b"new")

    assert path.read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_full_disk_keeps_the_old_file_and_is_reported(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    path.write_bytes(b"old")
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    monkeypatch.setattr("tputfind.record.files.token_hex", lambda _: "0")
    (tmp_path / ".record.json.0.tmp").symlink_to(full)

    with pytest.raises(BadRequest, match="No space left"):
        write_whole(path, b"new")

    assert path.read_bytes() == b"old"


def test_threads_write_one_name_at_the_same_time(tmp_path):
    path, written = tmp_path / "record.json", [b"%d" % number * 10_000 for number in range(50)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda data: write_whole(path, data), written))

    assert path.read_bytes() in written
    assert list(tmp_path.iterdir()) == [path]


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


def test_long_names_are_cut_and_stay_distinct(tmp_path):
    paths = [write_new(tmp_path, "x" * 300 + end, end.encode()) for end in ("a", "b", "a", "a")]

    assert len({path.name[:200] for path in paths}) == 1
    assert len(set(paths)) == 4
    assert [path.read_bytes() for path in paths] == [b"a", b"b", b"a", b"a"]
    assert all(path.suffix == ".json" for path in paths)


@pytest.mark.parametrize("length", range(200, 256, 5))
def test_a_name_as_long_as_the_file_system_takes_is_written_whole(tmp_path, length):
    path = tmp_path / ("é" * 50 + "x" * (length - 100))
    check_writable(path)
    write_whole(path, b"whole")

    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_folder_that_takes_no_file_like_a_record_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # for a module imported now, 100 bytes would be kept
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, soft[1]))
    try:
        with pytest.raises(BadRequest, match="File too large"):
            check_folder(tmp_path / "results")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft)
    check_folder(tmp_path / "results")

    assert not list((tmp_path / "results").iterdir())


@pytest.mark.parametrize("given", [5, True, None, b"results", ["results"], "", "a\0b", "a\nb"])
def test_invalid_path_is_refused_in_one_line(given):
    with pytest.raises(BadRequest, match=r"^output ") as refused:
        path_of("output", given)

    assert "\n" not in refused.value.message


def test_open_file_of_this_process_is_written_to_and_not_replaced(tmp_path):
    with (tmp_path / "log").open("w+") as file:
        file.write("before\n")
        file.flush()
        path = Path(f"/dev/fd/{file.fileno()}")
        check_writable(path)
        write_whole(path, b"table\n")
        file.seek(0, 2)
        file.write("after\n")

    assert (tmp_path / "log").read_text() == "before\ntable\nafter\n"


def test_loading_csv_of_a_record_hints_at_the_record(tmp_path):
    table, record = tmp_path / "x.csv", tmp_path / "x.json"
    table.write_text("model,phase\n")
    with pytest.raises(BadRecord, match="it is not JSON"):
        load(table)
    record.write_bytes(example().to_json())

    with pytest.raises(BadRecord) as refused:
        load(table)

    assert refused.value.hint == f"{record} beside it is the record"
