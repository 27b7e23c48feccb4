"""Seeding takes no memory of a trial."""

import linecache

import pytest
import torch

from tputfind.worker.settings import seed_all


@pytest.mark.skipif(torch.accelerator.is_available(), reason="seeding an accelerator that has not started keeps lines")
def test_seeding_keeps_no_lines_of_source_files():
    linecache.clearcache()

    seed_all(3)

    assert not linecache.cache
    assert torch.initial_seed() == 3
