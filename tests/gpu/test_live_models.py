"""A module that is already on the GPU, as in a notebook."""

import sys

from support.command import run_program


def test_gpu_module_copy_is_measured_and_own_gpu_memory_reported(tmp_path):
    program = (
        "import torch, tputfind, warnings\n"
        "module = torch.nn.Linear(8192, 8192).cuda()\n"
        "shift = torch.ones(8192, device='cuda')\n"
        "inputs = lambda batch: torch.randn(batch, 8192) + shift.cpu()\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always')\n"
        "    record = tputfind.find(module, inputs=inputs, device='cuda', batch_sizes=[1, 8])\n"
        "assert [row.status for row in record.rows] == ['ok', 'ok']\n"
        "assert next(module.parameters()).is_cuda and module.training\n"
        "assert 'its CUDA context aside' in str(told[0].message)\n"
        "assert 'memory_of_others' in {notice.kind for notice in record.notices}\n"
    )

    done = run_program([sys.executable, "-c", program], tmp_path)

    assert done.returncode == 0, done.stderr
