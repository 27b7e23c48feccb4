"""The server imports torchvision without torch's compiler, which is imported at its first use."""

import subprocess
import sys

PROGRAM = """
import sys, torch
from tputfind.record.spec import read_spec
from tputfind.worker.server import import_package
import_package("torchvision")
from tputfind.worker.workload import Workload
Workload(read_spec("resnet18", {"dtype": "bf16"}), torch.device("cpu")).batch(1)()
print("torch._dynamo" in sys.modules, "torch._dynamo.utils" in sys.modules)
roi_align = sys.modules["torchvision.ops.roi_align"]
roi_align.is_compile_supported("cpu")
import torch._dynamo.utils
print("torch._dynamo" in sys.modules, hasattr(torch._dynamo.utils, "counters"))
"""
OTHER_NAME = """
import sys
from tputfind.worker import server
with server._compiler_at_first_use():
    from torch._dynamo.utils import counters
    from torch._dynamo.utils import is_compile_supported
print(counters is sys.modules["torch._dynamo.utils"].counters, is_compile_supported.__module__)
"""


def printed(program):
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_named_model_is_built_and_run_without_the_compiler_until_needed():
    assert printed(PROGRAM) == ["False", "False", "True", "True"]


def test_other_names_of_the_compiler_import_it_at_once():
    assert printed(OTHER_NAME) == ["True", "torch._dynamo.utils"]
