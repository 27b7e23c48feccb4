"""Outputs of variants that take turns are compared across layouts, as far as they are comparable."""

import pytest

from tputfind.record.spec import Spec
from tputfind.session.turns import VariantFailed, _check_values

PLAIN, OTHER, HALF = (
    Spec(model="resnet18", layout=layout, dtype=dtype)
    for layout, dtype in (("nchw", "fp32"), ("nhwc", "fp32"), ("nhwc", "fp16"))
)


@pytest.mark.parametrize("values", [(1.1, 2.2, 3.3), (1.0, 2.0, 4.0)])
def test_other_values_than_those_of_the_first_variant_are_wrong(values):
    with pytest.raises(VariantFailed, match=r"outputs differ by 0\.\d+ \(relative\) from those of fp32 nchw") as failed:
        _check_values([PLAIN, OTHER], [(1.0, 2.0, 3.0), values])

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
    _check_values([PLAIN, spec], [(1.0, 2.0, 3.0), values])
