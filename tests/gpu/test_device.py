"""The tool describes a GPU correctly."""

import pytest
from support.command import run
from support.rows import time_rows

from tputfind.processes.children import Children
from tputfind.record.spec import read_spec
from tputfind.record.types import DTYPES, LAYOUTS


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


def test_every_dtype_runs_in_both_layouts():
    with Children() as children:
        for dtype in DTYPES:
            for layout in LAYOUTS:
                spec = read_spec("resnet18", {"device": "cuda", "dtype": dtype, "layout": layout, "batches": 10})
                (row,) = time_rows(children, spec, 8)
                assert row.failure is None, (dtype, layout, row.failure)
                assert row.output.result == "right", (dtype, layout, row.output)
