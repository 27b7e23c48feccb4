"""Values that no option takes: refused by the command in one line, before anything is measured."""

from __future__ import annotations

import pytest
from support.command import run

LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet18", "--memory-limit", "8EiB"), "--memory-limit: '8EiB' is more than 1 EiB"),
        (("resnet18", "--headroom", "8EiB"), "--headroom: '8EiB' is more than 1 EiB"),
        (("resnet18", "--max-seconds", "1e300"), "--max-seconds: '1e300' is more than 360000 seconds"),
        (("resnet18", "--trial-timeout", "1e20s"), "--trial-timeout: '1e20s' is not a duration"),
        (("resnet18", "--input-size", "99999999999"), "--input-size: 99999999999 is not between 1 and 2147483647"),
        (("resnet18", "--input", f"x:float:Bx{'9x' * 9999}9"), "--input: 10000 dimensions are more than 24"),
        (("resnet18", "--batch-sizes", ",".join(map(str, range(1, 12_000)))), "11999 numbers are more than 10000"),
        (("resnet18", "--batch-sizes", LONG), "'xxx"),
        (("clocks", "resnet18", "--repeats", LONG), "--repeats: 'xxx"),
        (("clocks", "resnet18", "vgg11", "--host-work", LONG), "--host-work: 'xxx"),
        (("forecast", "resnet18", "--memory", "16GiB,8EiB"), "--memory: '8EiB' is more than 1 EiB"),
        (("compare", "old.json", "new.json", "--tolerance", LONG), "--tolerance: 'xxx"),
        (("models", LONG), "no model's name matches 'xxx"),
    ],
)
def test_a_value_that_no_option_takes_is_one_short_line(tmp_path, arguments, message):
    ran = run(tmp_path, *arguments)

    assert ran.status == 2, ran.err
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
    assert len(ran.err) < 300
    assert ran.out == ""
