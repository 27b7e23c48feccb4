from __future__ import annotations

import numpy
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from tputfind.stats import mean, percentile, samples_for_percentile, standard_deviation

SAMPLES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=200)


@given(SAMPLES)
def test_the_mean_is_scipys(samples):
    assert mean(samples) == pytest.approx(scipy.stats.tmean(samples))


@pytest.mark.filterwarnings("ignore:Precision loss")  # scipy's, of samples that are all alike
@given(SAMPLES.filter(lambda samples: len(samples) > 1))
def test_the_standard_deviation_is_scipys(samples):
    expected = scipy.stats.tstd(samples)

    assert standard_deviation(samples) == pytest.approx(expected, rel=1e-6, abs=1e-6 * max(samples))


@given(SAMPLES, st.sampled_from([50, 90, 95, 99]))
def test_a_percentile_is_numpys_and_scipys_or_none_where_samples_are_few(samples, percent):
    found = percentile(samples, percent)

    if len(samples) < samples_for_percentile(percent):
        assert found is None
    else:
        assert found == pytest.approx(numpy.percentile(samples, percent))
        assert found == pytest.approx(scipy.stats.scoreatpercentile(samples, percent))


@given(st.lists(st.floats(1e-3, 1e6), min_size=10, max_size=200), st.floats(0.1, 90), st.randoms())
def test_a_percentile_does_not_depend_on_order_and_lies_within_the_samples(samples, percent, random):
    shuffled = samples[:]
    random.shuffle(shuffled)
    found = percentile(samples, percent)

    assert found == percentile(shuffled, percent)
    assert min(samples) <= found <= max(samples)


@given(st.lists(st.floats(1e-3, 1e6), min_size=10, max_size=100), st.floats(1e-3, 1e3))
def test_a_percentile_scales_with_its_unit(samples, factor):
    assert percentile([sample * factor for sample in samples], 90) == pytest.approx(percentile(samples, 90) * factor)


def test_nothing_is_said_of_no_samples():
    assert mean([]) is None
    assert standard_deviation([1.0]) is None
    assert percentile([], 50) is None


def test_the_99th_percentile_needs_100_samples():
    assert samples_for_percentile(99) == 100
    assert percentile([1.0] * 99, 99) is None
    assert percentile([1.0] * 100, 99) == 1.0
    assert samples_for_percentile(99.9) == 1000
    assert samples_for_percentile(50) == 2
