"""Outputs of variants that take turns are compared across layouts, as far as they are comparable."""

from random import Random

import pytest

from tputfind.analysis.turns import Speed
from tputfind.processes.children import Children
from tputfind.processes.messages import Turn
from tputfind.record.spec import Spec
from tputfind.session import turns
from tputfind.session.turns import Variant, VariantFailed, _check_values, take_round

PLAIN, OTHER, HALF = (
    Spec(model="resnet18", layout=layout, dtype=dtype)
    for layout, dtype in (("nchw", "fp32"), ("nhwc", "fp32"), ("nhwc", "fp16"))
)


@pytest.mark.parametrize("values", [(1.1, 2.2, 3.3), (1.0, 2.0, 4.0)])
def test_other_values_than_those_of_the_first_variant_are_wrong(values):
    with pytest.raises(VariantFailed, match=r"outputs differ by 0\.\d+ \(relative\) from those of fp32 nchw") as failed:
        _check_values([PLAIN, OTHER], [Turn(values=(1.0, 2.0, 3.0)), Turn(values=values)])

    assert (failed.value.variant, failed.value.failure.kind) == (1, "wrong_output")


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        (OTHER, (1.0, 2.0, 3.0)),
        (OTHER, (1.0, 2.0001, 3.0)),
        (OTHER, (3.0, 1.0, 2.0)),
        (OTHER, (1.0, 2.0)),
        (OTHER, ()),
        (HALF, (9.0, 9.0, 9.0)),
    ],
)
def test_rounding_order_number_and_dtype_may_differ(spec, values):
    _check_values([PLAIN, spec], [Turn(values=(1.0, 2.0, 3.0)), Turn(values=values)])


def test_outputs_of_other_weights_or_inputs_are_not_compared():
    _check_values([PLAIN, OTHER], [Turn(values=(1.0,), sources=(0.5, 0.25)), Turn(values=(9.0,), sources=(0.5, 0.75))])


def test_slower_variant_that_runs_alone_takes_no_longer_than_the_other(monkeypatch):
    class Process:
        """A process that starts in 5 s; a window lasts as long as its batch size says."""

        last = Turn()

        def __init__(self, variant, *_):
            self.window_s = variant.batch_size / 10

        def start(self):
            now[0] += 5

        def window_per_unit(self):
            now[0] += self.window_s
            return 1 / self.window_s

        def median_speed(self):
            return Speed(batch_size=1, samples_per_s=1, latency_ms=1)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            """Do nothing."""

        finish = close_gate = __exit__

    now = [0.0]
    monkeypatch.setattr(turns, "_Process", Process)
    monkeypatch.setattr(turns, "monotonic", lambda: now[0])
    variants = [Variant(PLAIN, batch_size, Children(), None) for batch_size in (1, 10)]
    taken = take_round(variants, 0, Random(1), together=False)

    assert [len(windows) for windows in taken.per_s] == [10, 10]
    assert [set(windows) for windows in taken.per_s] == [{10.0}, {1.0}]
    assert now[0] < 32
