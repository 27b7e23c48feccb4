"""Tables, files and models as a user of the command meets them."""

import subprocess
import sys

import pandas
import pytest
from support.command import ENVIRONMENT, QUICK, TINY, command, run, run_program
from support.folders import MODELS
from support.shown import KINDS

import tputfind
from tputfind.errors import NoSuchDevice


def test_main_job_prints_table_and_answers_and_saves_files(tmp_path):
    asked = ("mobilenet_v3_small", "--image-size", 64, "--max-batch", 3, "--max-latency", "none", "--slo", "10s")
    ran = run(tmp_path, *asked, "--percentile", 90, *QUICK)

    assert ran.status == 0, ran.err
    for label in ("Deploy", "Largest batch", "Fastest batch", "Knee"):
        assert label in ran.out
    assert "timing batch" in ran.err
    assert "timing batch" not in ran.out
    record = ran.record("mobilenet_v3_small-fp32-*")
    (csv,) = (tmp_path / "results").glob("*.csv")
    loaded = pandas.read_csv(csv, dtype=KINDS)
    assert list(loaded["batch_size"]) == [1, 2, 3]
    assert (loaded["status"] == "ok").all()
    assert (loaded["input_shape"] == "3x64x64").all()
    for row in record.rows:
        assert len(row.device_ms) == len(row.latency_ms) == 10
        assert row.peak_allocated_bytes > 0
    assert record.command.startswith("tputfind mobilenet_v3_small --image-size 64")
    assert record.finished is not None
    assert record.environment.torch
    assert record.parameters == 2542856


def test_cpu_row_uses_one_window_for_throughput_and_latency(tmp_path, ask):
    asked = ("--batch-sizes", "1,4", *QUICK, "--batches", 8)
    record = ask(tmp_path, f"{MODELS}/plain.py:sleeps", *asked).record()

    for row in record.rows:
        assert row.latency_ms == row.device_ms
        assert len(row.latency_ms) == 8
        assert row.enqueue_ms == ()
        assert all(span_ms >= 10 * row.batch_size for span_ms in row.device_ms)
        assert row.samples_per_s <= 100


def test_options_may_precede_model_and_several_models_share_a_table(tmp_path, ask):
    ran = ask(
        tmp_path,
        "--no-save",
        "--save",
        "all.csv",
        *TINY,
        "mobilenet_v3_small",
        "shufflenet_v2_x0_5",
        "--save",
        "all.md",
    )

    assert ran.status == 0, ran.err
    assert list(pandas.read_csv(tmp_path / "all.csv")["model"]) == ["mobilenet_v3_small", "shufflenet_v2_x0_5"]
    assert (tmp_path / "all.md").read_text().count("| shufflenet_v2_x0_5 |") == 1
    assert not (tmp_path / "results").exists()


def test_second_run_never_overwrites(tmp_path, ask):
    first = ask(tmp_path, "shufflenet_v2_x0_5", *TINY)
    before = {path: path.read_bytes() for path in (tmp_path / "results").iterdir()}
    second = ask(tmp_path, "shufflenet_v2_x0_5", *TINY, "--save", "copy.json")

    assert (first.status, second.status) == (0, 0)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert len(list((tmp_path / "results").iterdir())) == 4
    assert (tmp_path / "copy.json").read_bytes() in [p.read_bytes() for p in (tmp_path / "results").glob("*.json")]


def test_every_dtype_of_the_cpu_runs(tmp_path, ask):
    dtypes = ["fp16", "bf16", "amp-fp16", "amp-bf16"]
    ran = ask(tmp_path, "shufflenet_v2_x0_5", "--dtype", ",".join(dtypes), *TINY, "--no-save", "--save", "all.csv")

    assert ran.status == 0, ran.err
    table = pandas.read_csv(tmp_path / "all.csv")
    assert list(zip(table["dtype"], table["status"], strict=True)) == [(dtype, "ok") for dtype in dtypes]


def test_channels_last_arranges_a_model_as_torch_itself_does():
    """Compare strides too: those of 1x1 weights are ambiguous, and kernels are chosen by them."""
    import torch
    import torchvision

    from tputfind.worker.conversion import arrange_module

    ours, torchs = (torchvision.models.get_model("resnet18", weights=None) for _ in range(2))
    ours.load_state_dict(torchs.state_dict())
    ours = arrange_module(ours, torch.float16, "nhwc").state_dict()
    torchs = torchs.to(torch.float16).to(memory_format=torch.channels_last).state_dict()

    assert {name: tensor.stride() for name, tensor in ours.items()} == {n: t.stride() for n, t in torchs.items()}
    assert all(torch.equal(tensor, torchs[name]) for name, tensor in ours.items())


def test_local_package_is_found_and_model_prints_stay_off_stdout(tmp_path, ask):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text((MODELS / "plain.py").read_text())

    ran = ask(tmp_path, "mine:prints", "--input-size", 16, "--batch-sizes", 1, *QUICK)

    assert ran.status == 0, ran.err
    assert ran.record().input_shape == "16"
    assert "a word of the model" not in ran.out


def test_all_121_models_are_listed_by_family_with_their_own_input(tmp_path, ask):
    ran = ask(tmp_path, "models")

    lines = dict(line.split()[:2] for line in ran.out.splitlines()[1:] if not line.startswith(("timm:", "hf:")))
    assert len(lines) == 121
    assert "timm:NAME is a model of timm: tputfind models 'timm:*'" in ran.out
    assert (lines["resnet50"], lines["vit_h_14"], lines["inception_v3"]) == ("3x224x224", "3x518x518", "3x299x299")
    assert (lines["r3d_18"], lines["raft_large"]) == ("3x16x112x112", "3x520x960+3x520x960")
    assert ask(tmp_path, "models", "resnet1*").out.split()[4::5] == ["resnet101", "resnet152", "resnet18"]
    assert len(ask(tmp_path, "models", "detection").out.splitlines()) == 13
    assert ask(tmp_path, "models", "nothing*").status == 2


def test_the_cpu_is_among_the_devices(tmp_path, ask):
    ran = ask(tmp_path, "devices")

    assert ran.status == 0
    assert any(line.startswith("cpu ") for line in ran.out.splitlines())


def test_model_file_may_be_named_like_a_package_in_bracketed_folder(tmp_path, ask):
    folder = tmp_path / "a[/x]b|c"
    folder.mkdir(parents=True)
    (folder / "torch.py").write_text((MODELS / "plain.py").read_text())

    ran = ask(tmp_path, f"{folder}/torch.py:mebibytes", f"{folder}/torch.py:sleeps", "--batch-sizes", 1, *QUICK)

    assert ran.status == 0, ran.err
    assert "[/x]" in ran.out


def test_both_ways_to_start_it_are_the_same():
    outputs = [
        subprocess.run([*start, "--help"], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
        for start in (command(), [sys.executable, "-m", "tputfind"])
    ]

    assert outputs[0] == outputs[1]


def test_find_in_python_needs_no_main_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, tputfind\n"
        "assert 'torch' not in sys.modules\n"
        "quick = {'batches': 10, 'processes': 1}\n"
        "record = tputfind.find('shufflenet_v2_x0_5', image_size=64, batch_sizes=[1, 2], output='kept', **quick)\n"
        "print([row.batch_size for row in record.rows], 'torch' in sys.modules)\n"
    )

    done = run_program([sys.executable, script], tmp_path)

    assert done.stdout == "[1, 2] False\n", done.stderr
    assert len(list((tmp_path / "kept").glob("*.json"))) == 1


def test_from_python_several_recipes_show_the_document_of_the_command_line(tmp_path, ask, kept, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = {"batch_sizes": [1, 2], "batches": 10, "processes": 1}
    model = f"{MODELS}/plain.py:keyword_inputs"
    found = kept.find(model, dtype=["fp32", "bf16"], layout="nchw,nhwc", output="kept", **quick)
    found.save("all.csv", "all.md", "all.html", "all.json")

    kinds = [(one.spec.dtype, one.spec.layout, len(one.rows)) for one in found]
    assert kinds == [(dtype, layout, 2) for dtype in ("fp32", "bf16") for layout in ("nchw", "nhwc")]
    assert {one.input_shape for one in found} == {"3+3"}
    assert len(found.frame()) == 8
    assert tputfind.load("all.json") == found
    paths = sorted((tmp_path / "kept").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    shown = ask(tmp_path, "report", *paths, "--save", "again.md")
    assert repr(found).split() == shown.out.split()
    assert (tmp_path / "all.md").read_bytes() == (tmp_path / "again.md").read_bytes()


def test_find_impossible_recipe_is_failed_row_unless_none_can_run(kept):
    model, quick = (
        f"{MODELS}/plain.py:keyword_inputs",
        {"batch_sizes": [1], "batches": 10, "processes": 1, "device": "cpu"},
    )
    found = kept.find(model, mode=("eager", "cudagraph"), **quick)
    (one,) = kept.find(model, mode=["eager"], **quick)

    assert [[row.status for row in one.rows] for one in found] == [["ok"], ["unsupported"]]
    assert type(one).__name__ == "Record"
    with pytest.raises(NoSuchDevice):
        kept.find(model, mode="cudagraph", dtype=["fp32", "fp16"], **quick)


@pytest.mark.parametrize("shown", [True, None])
def test_find_shows_progress_only_on_request(kept, capsys, shown):
    kept.find(f"{MODELS}/plain.py:sleeps", batch_sizes=[1], batches=10, processes=1, progress=shown)

    printed = capsys.readouterr()
    assert printed.err.count(":sleeps: timing batch 1") == (1 if shown else 0)
    assert printed.out == ""


def test_from_python_a_listener_is_given_the_record_as_it_grows(kept):
    class Listener:
        def __init__(self):
            self.records, self.words = [], []
            self.did = self.words.append
            self.measured = self.records.append

        def doing(self, what, seconds_left):
            self.words.append(what)

    listener = Listener()
    found = kept.find(f"{MODELS}/plain.py:sleeps", max_batch=2, batches=10, processes=1, progress=listener)

    counts = [(len(record.trials), len(record.rows)) for record in listener.records]
    assert counts == sorted(counts)
    assert counts[-1] == (len(found.trials), 2)
    assert [record.finished is None for record in listener.records].count(False) == 1
    assert listener.records[-1] == found
    assert {"does batch 1 fit?", "batch 1 fits"} <= set(listener.words)
