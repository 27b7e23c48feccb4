"""Builds the backend of ``tests/backend``: a real torch accelerator on the CPU of this machine."""

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path

from support.folders import TESTS

SOURCE = TESTS / "backend" / "torch_hostdev"


def built() -> Path:
    """Return the folder of the package ``torch_hostdev``; an earlier build is reused."""
    import torch
    from torch.utils import cpp_extension

    text = (SOURCE / "backend.cpp").read_bytes() + (SOURCE / "__init__.py").read_bytes() + torch.__version__.encode()
    folder = Path(tempfile.gettempdir()) / f"hostdev-{os.getuid()}-{hashlib.sha256(text).hexdigest()[:16]}"
    if (folder / "torch_hostdev").is_dir():
        return folder
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        package = Path(scratch) / "torch_hostdev"
        package.mkdir()
        shutil.copy(SOURCE / "__init__.py", package)
        included = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
        (libraries, *_) = cpp_extension.library_paths()
        compile_it = [
            *("c++", "-std=c++20", "-O1", "-fPIC", "-shared", "-DTORCH_EXTENSION_NAME=_C"),
            *(f"-I{path}" for path in included),
            *(str(SOURCE / "backend.cpp"), "-o", str(package / "_C.so")),
            *(f"-L{libraries}", "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10", f"-Wl,-rpath,{libraries}"),
        ]
        done = subprocess.run(compile_it, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        folder.mkdir(exist_ok=True)
        with suppress(OSError):  # another process has built it meanwhile
            package.rename(folder / "torch_hostdev")
    return folder
