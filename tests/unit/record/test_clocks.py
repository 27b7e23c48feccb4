"""Files saved by `tputfind clocks` and `tputfind forecast` load unchanged, or are refused in one line."""

import json

import pytest
from support.folders import record_path
from support.records import FORECASTS

from tputfind.errors import BadRecord
from tputfind.record import files
from tputfind.record.untrusted import indent_json

METHODS = record_path("nvidia-h200/clocks/mobilenet_v3_large-fp32.json")
PIPELINE = record_path("nvidia-h200/clocks/mobilenet_v3_large-resnet50-fp32.json")


def edited(tmp_path, source, **fields):
    """Return the path of a copy with changed fields; fields unknown at the top go into the first cell's figures."""
    held = json.loads(source.read_bytes() if source is not None else indent_json(FORECASTS))
    for name, value in fields.items():
        if name in held or name == "schema":
            held[name] = value
        else:
            held["cells"][0]["figures"][name] = value
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(held))
    return path


@pytest.mark.parametrize(
    ("source", "fields", "told"),
    [
        (METHODS, {"samples_ms": []}, "samples_ms"),
        (METHODS, {"mean_ms": -1}, "mean_ms"),
        (METHODS, {"repeats": 10**15}, "repeats"),
        (METHODS, {"drop": -1}, "drop"),
        (METHODS, {"batch_size": 0}, "batch_size"),
        (METHODS, {"schema": 99}, "has schema 99, and this version reads up to 1"),
        (PIPELINE, {"host_work_ms": "long"}, "host_work_ms"),
        (None, {"cards": [{"memory_bytes": 1, "largest_batch": -1, "error": 0}]}, "largest_batch"),
        (None, {"schema": 99}, "has schema 99, and this version reads up to 1"),
        (None, {"tried": "all"}, "tried"),
    ],
)
def test_malformed_clocks_or_forecast_file_is_refused_in_one_line(tmp_path, source, fields, told):
    with pytest.raises(BadRecord, match=told) as refused:
        files.load(edited(tmp_path, source, **fields))

    assert "\n" not in str(refused.value)


def test_a_run_is_not_gone_on_with_from_a_file_of_clocks():
    with pytest.raises(BadRecord) as refused:
        files.load_record(METHODS)

    assert refused.value.hint == "tputfind report shows it"
