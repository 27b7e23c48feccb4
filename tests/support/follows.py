"""Imported by a server of the tests: its children start with the folder, variables and live object of a command."""

import json
import os
from contextlib import suppress
from pathlib import Path

from tputfind.processes.children import LIVE_OBJECT

PLACE = "TPUTFIND_TESTS_PLACE"
"""Environment variable with the path of a file that names these while a command runs."""


def follow() -> None:
    with suppress(FileNotFoundError):
        folder, variables, live = json.loads(Path(os.environ[PLACE]).read_text())
        os.chdir(folder)
        os.environ.update(variables)
        if live and not os.environ.get(LIVE_OBJECT):  # a copy of the server may have an object of its own
            os.environ[LIVE_OBJECT] = str(os.open(live, os.O_RDONLY))


os.register_at_fork(after_in_child=follow)
