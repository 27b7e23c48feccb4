import math
import random
import statistics

import numpy
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from tputfind.stats import (
    Interval,
    mean,
    mean_interval,
    median_interval,
    outlier_share,
    percentile,
    ratio_interval,
    samples_for_percentile,
    spread,
    standard_deviation,
    t_quantile,
    transient,
    trend,
    widen_interval,
)

SAMPLES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=200)


@given(SAMPLES)
def test_the_mean_is_scipys(samples):
    assert mean(samples) == pytest.approx(scipy.stats.tmean(samples))


@pytest.mark.filterwarnings("ignore:Precision loss")  # by scipy, for equal samples
@given(SAMPLES.filter(lambda samples: len(samples) > 1))
def test_the_standard_deviation_is_scipys(samples):
    expected = scipy.stats.tstd(samples)

    assert standard_deviation(samples) == pytest.approx(expected, rel=1e-6, abs=1e-6 * max(samples))


@given(SAMPLES, st.sampled_from([50, 90, 95, 99]))
def test_percentile_equals_that_of_numpy_or_is_none_with_few_samples(samples, percent):
    found = percentile(samples, percent)

    if len(samples) < samples_for_percentile(percent):
        assert found is None
    else:
        assert found == pytest.approx(numpy.percentile(samples, percent))


@given(st.floats(1e-3, 1e6), st.floats(1, 99))
def test_percentile_of_equal_samples_is_exact(sample, percent):
    assert percentile([sample] * 200, percent) == sample


@pytest.mark.parametrize("sides", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_ratio_with_a_zero_side_has_no_interval(sides):
    top, bottom = ([[side, side], [side, side]] for side in sides)

    assert ratio_interval(top, bottom, 0.0) is None


@given(st.lists(st.floats(1e-3, 1e6), min_size=10, max_size=200), st.floats(0.1, 90), st.randoms())
def test_a_percentile_does_not_depend_on_order_and_lies_within_the_samples(samples, percent, random):
    shuffled = samples[:]
    random.shuffle(shuffled)
    found = percentile(samples, percent)

    assert found == percentile(shuffled, percent)
    assert min(samples) <= found <= max(samples)


def test_statistics_and_intervals_of_too_few_samples_are_none():
    assert mean([]) is None
    assert standard_deviation([1.0]) is None
    assert percentile([], 50) is None
    assert mean_interval([]) is None
    assert mean_interval([[1.0, 2.0, 3.0]]) is None
    assert median_interval([[1.0], []]) is None


def test_the_99th_percentile_needs_100_samples():
    assert samples_for_percentile(99) == 100
    assert percentile([1.0] * 99, 99) is None
    assert percentile([1.0] * 100, 99) == 1.0
    assert samples_for_percentile(99.9) == 1000
    assert samples_for_percentile(50) == 2


@pytest.mark.parametrize("degrees_of_freedom", [1, 2, 3, 4, 9, 10, 19, 57, 99])
def test_the_t_quantile_is_scipys(degrees_of_freedom):
    assert t_quantile(degrees_of_freedom) == pytest.approx(scipy.stats.t.ppf(0.975, degrees_of_freedom), rel=1e-9)


@given(st.lists(st.lists(st.floats(0.5, 2.0), min_size=7, max_size=7), min_size=2, max_size=6))
def test_the_interval_of_processes_of_equal_length_is_scipys_of_their_means(processes):
    means = [statistics.fmean(process) for process in processes]
    found = mean_interval(processes)

    if len({round(each, 9) for each in means}) > 1:
        low, high = scipy.stats.t.interval(0.95, len(means) - 1, loc=numpy.mean(means), scale=scipy.stats.sem(means))
        assert found.low == pytest.approx(low, abs=1e-9)
        assert found.high == pytest.approx(high, abs=1e-9)


@given(SAMPLES.filter(lambda samples: len(samples) >= 4), st.integers(1, 4))
def test_intervals_contain_their_statistic_and_scale_with_it(samples, processes):
    parts = [samples[number::processes] for number in range(processes)]
    for interval, centre in ((mean_interval, mean(samples)), (median_interval, statistics.median(samples))):
        found = interval(parts)
        larger = interval([[2 * sample for sample in part] for part in parts])
        if found is not None:
            assert found.low * (1 - 1e-9) <= centre <= found.high * (1 + 1e-9)
            assert (larger.low, larger.high) == pytest.approx((2 * found.low, 2 * found.high))


@given(st.floats(1, 100), st.floats(0, 0.5), st.floats(0, 0.5))
def test_widening_adds_uncertainties_as_squares_about_the_same_middle(middle, share, more):
    found = widen_interval(Interval(middle * (1 - share), middle * (1 + share)), more)

    assert (found.low + found.high) / 2 == pytest.approx(middle)
    assert found.half_width == pytest.approx((share**2 + more**2) ** 0.5, abs=1e-9)


@given(st.floats(0.5, 2), st.floats(0.0001, 0.1))
def test_ratio_interval_includes_the_common_uncertainty_of_both_means(ratio, share):
    found = ratio_interval([[ratio] * 3] * 3, [[1.0] * 3] * 3, share)

    assert math.log(found.high / ratio) == pytest.approx(2**0.5 * share)
    assert math.log(ratio / found.low) == pytest.approx(2**0.5 * share)


def correlated(rng, count, correlation, offset):
    """Return samples around 100 with correlated neighbours: a first-order autoregression."""
    state, samples = rng.gauss(0, 1 / (1 - correlation**2) ** 0.5), []
    for _ in range(count):
        samples.append(100 + offset + state)
        state = correlation * state + rng.gauss(0, 1)
    return samples


@pytest.mark.parametrize(
    ("processes", "count", "correlation", "between", "least"),
    [
        (1, 100, 0.0, 0, 0.93),
        (1, 100, 0.5, 0, 0.91),
        (1, 100, 0.9, 0, 0.72),  # the limit of one process; three are the default
        (3, 34, 0.0, 0, 0.93),
        (3, 34, 0.9, 0, 0.92),
        (3, 34, 0.5, 5, 0.93),
        (5, 20, 0.9, 3, 0.92),
    ],
)
def test_intervals_cover_the_truth_in_about_95_percent_of_simulations(processes, count, correlation, between, least):
    rng = random.Random(20261121)
    runs, means, medians = 1000, 0, 0
    for _ in range(runs):
        parts = [correlated(rng, count, correlation, rng.gauss(0, between)) for _ in range(processes)]
        for_mean, for_median = mean_interval(parts), median_interval(parts)
        means += for_mean.low <= 100 <= for_mean.high
        medians += for_median.low <= 100 <= for_median.high

    print(f"{processes} x {count}, correlation {correlation}, between {between}: {means / runs}, {medians / runs}")
    assert least <= means / runs <= 0.975
    assert least <= medians / runs <= 0.975


@given(st.lists(st.floats(0.96, 1.04), min_size=1, max_size=200))
def test_the_spread_is_scipys_interquartile_range_over_that_of_a_standard_normal(samples):
    expected = scipy.stats.iqr(samples) / (2 * scipy.stats.norm.ppf(0.75)) / numpy.median(samples)

    assert spread(samples) == pytest.approx(expected, rel=1e-4, abs=1e-9)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=60))
def test_samples_of_no_duration_have_measures_too(samples):
    for measure in (spread, outlier_share, trend):
        assert abs(measure(samples)) < float("inf")


def test_many_far_samples_are_no_outliers_but_spread():
    samples = [1.0] * 76 + [5.0] * 24

    assert outlier_share(samples) == 0
    assert spread(samples) == pytest.approx(statistics.stdev(samples))


def test_a_steady_change_in_coarse_steps_is_a_trend_too():
    assert trend([1 + 0.05 * (number // 15) for number in range(100)]) > 0.2
    assert trend([1.0] * 100) == 0


@given(st.lists(st.floats(0.99, 1.01), min_size=10, max_size=200), st.floats(2, 100))
def test_one_far_sample_is_an_outlier_and_ordinary_ones_are_not(samples, far):
    whole = [*samples, far]

    assert outlier_share(samples) == 0
    assert outlier_share(whole) == pytest.approx(statistics.fmean(whole) / statistics.fmean(samples) - 1)


@given(st.integers(40, 300), st.floats(-0.5, 2.0).filter(lambda change: abs(change) > 0.01))
def test_a_steady_change_is_a_trend_in_its_own_direction(count, change):
    found = trend([1 + change * number / count for number in range(count)])

    assert found * change > 0
    assert abs(found) <= abs(change) / min(1, 1 + change)


def test_noise_is_a_trend_less_often_than_once_in_500_windows():
    rng = random.Random(1)

    assert sum(trend([rng.gauss(1, 0.1) for _ in range(34)]) != 0 for _ in range(5000)) < 10


@given(st.lists(st.floats(0.1, 10), max_size=4), st.integers(60, 200))
def test_transient_before_steady_samples_is_cut_at_its_end(above, count):
    steady = [10.0, 10.02] * (count // 2)
    start = sorted((10.5 + each for each in above), reverse=True)

    assert len(start) <= transient(start + steady) <= len(start) + 5


@given(st.integers(4, 300), st.floats(0.1, 1000))
def test_equal_samples_have_no_transient(count, level):
    assert transient([level] * count) == 0


@given(st.integers(60, 300), st.floats(0.001, 0.1), st.booleans())
def test_drifting_samples_are_cut_as_far_as_possible(count, share, falls):
    samples = [10 * (1 + share * number / count) for number in range(count)]

    assert transient(samples[::-1] if falls else samples) >= count // 2 - 5


@given(st.integers(60, 200), st.integers(0, 59), st.floats(2, 100))
def test_neither_the_unit_nor_the_distance_of_a_disturbance_moves_the_cut(count, place, factor):
    rng = random.Random(count)
    samples = [rng.gauss(10, 0.1) for _ in range(count)]

    def cut(times, unit=1.0):
        disturbed = [*samples[:place], samples[place] * times, *samples[place + 1 :]]
        return transient([unit * sample for sample in disturbed])

    assert cut(factor) == cut(2) == cut(2, unit=1024.0) == cut(2, unit=1 / 1024)


def test_single_disturbance_is_rarely_taken_for_a_transient():
    """Without clipping, the cut would lie after it every time."""
    cuts = []
    for seed in range(50):
        rng = random.Random(seed)
        samples = [rng.gauss(10, 0.1) for _ in range(100)]
        cuts.append(transient([*samples[:30], 500.0, *samples[30:]]))

    assert sum(30 < cut <= 35 for cut in cuts) <= 10


def test_a_few_samples_are_cut_one_by_one():
    assert transient([]) == transient([5.0]) == 0
    assert transient([9.0, 5.0, 5.0, 5.0]) == 1
    assert transient([9.0, 7.0, 5.0, 5.0, 5.01, 5.0]) == 2
