"""The tool describes a GPU correctly."""

import pytest
from support.command import run
from support.rows import time_rows

from tputfind.processes.children import Children
from tputfind.processes.messages import TryBatch
from tputfind.record.record import Trial
from tputfind.record.spec import read_spec
from tputfind.record.types import DTYPES, LAYOUTS, QUANTIZED


@pytest.mark.opens_gpu
def test_the_gpu_is_listed_and_auto_takes_it(tmp_path):
    import torch

    name = torch.cuda.get_device_name(0)
    listed = run(tmp_path, "devices")
    ran = run(tmp_path, "shufflenet_v2_x0_5", "--batch-sizes", 1, "--batches", 10)

    assert f"cuda:0  {name}" in listed.out
    environment = ran.record().environment
    assert (environment.device, environment.device_name) == ("cuda:0", name)
    assert environment.device_uuid == f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    assert environment.driver
    assert environment.cuda == torch.version.cuda
    assert environment.memory_total_bytes == torch.cuda.mem_get_info()[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_runs_in_both_layouts(dtype):
    if dtype in QUANTIZED:
        pytest.importorskip("torchao")
    with Children() as children:
        for layout in LAYOUTS:
            spec = read_spec("resnet18", {"device": "cuda", "dtype": dtype, "layout": layout, "batches": 10})
            (row,) = time_rows(children, spec, 8)
            assert row.failure is None, (layout, row.failure)
            assert row.output.result == "right", (layout, row.output)


def test_package_that_asks_for_capability_on_import_leaves_the_device_closed(tmp_path, monkeypatch):
    (tmp_path / "asks.py").write_text(
        "import torch\nfound = torch.cuda.get_device_capability(), torch.cuda.get_device_properties('cuda').name\n"
    )
    (tmp_path / "own.py").write_text(
        "import sys, torch\n"
        "class Own(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        properties = torch.cuda.get_device_properties(x.device)\n"
        "        assert sys.modules['asks'].found == ((properties.major, properties.minor), properties.name)\n"
        "        assert properties.uuid\n"
        "        return x\n"
        "factory = lambda: (Own(), lambda size: torch.ones(size, 4))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with Children() as children:
        assert children.preload("asks") == ""
        assert children.ask_one(TryBatch(read_spec(f"{tmp_path}/own.py:factory", {}), 4), Trial, 60.0).failure is None
