"""Exit codes of a comparison: slower, too noisy to judge, or not judged."""

import pytest
from msgspec.structs import replace
from support.records import example

from tputfind.analysis.compare import Comparison, compare, gate
from tputfind.errors import BadRequest, Regression, TooNoisy
from tputfind.record.record import Health, Record, Row, Timing


def of(*processes_ms: float, batch_size: int = 32, enqueue_ms: float = 0.1, health: Health | None = None) -> Record:
    """Return a record of one batch size whose processes took these times for each of their batches."""
    timings = tuple(
        Timing(device_ms=(ms,) * 20, latency_ms=(ms,), enqueue_ms=(ms * enqueue_ms,), health=health)
        for ms in processes_ms
    )
    return replace(example(), rows=(Row(batch_size=batch_size, timings=timings),), edge=None)


def judged(old: Record, new: Record, share: float | None = 0.03) -> tuple[int, list[str], Comparison]:
    found, problems = compare(old, new), []
    return gate([found], share, problems), [problem.message for problem in problems], found


STEADY = of(9.99, 10.0, 10.01)


def test_gate_on_records_too_noisy_to_judge_has_its_own_code():
    code, lines, _ = judged(STEADY, of(9.0, 10.0, 11.0))

    assert TooNoisy.exit_code not in (0, 1, 2)
    assert code == TooNoisy.exit_code
    assert lines == ["too noisy to exclude that it is 3 % slower: resnet50 fp16 nchw eager at batch 32 (the fastest)"]


def test_gate_on_slower_row_within_tolerance_gives_one_reason():
    """The ratio 0.977 (0.956 to 0.999) is certainly below 1, perhaps by 3 %. It was also reported as unjudged once."""
    code, lines, found = judged(STEADY, of(10.14, 10.235, 10.33))

    assert found.verdict == "slower"
    assert 0.97 < found.best.ratio < 0.98
    assert found.best.low < 0.97 < found.best.high < 1
    assert code == TooNoisy.exit_code
    (line,) = lines
    assert line.startswith("too noisy to exclude that it is 3 % slower")
    assert "judged" not in line


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (of(10.0), "timed in one process"),
        (of(10, 10, 10, health=Health(readings=9, slowed={"software_thermal": 0.5})), "throttled in NEW"),
        (of(), "one of them has no row that was timed"),
    ],
)
def test_gate_on_a_record_that_no_quiet_would_help_exits_with_2(new, reason):
    code, lines, _ = judged(STEADY, new)

    assert code == BadRequest.exit_code
    (line,) = lines
    assert f"could not be judged: {reason}" in line


def test_gate_on_a_host_bound_slowdown_exits_as_too_noisy():
    code, lines, found = judged(STEADY, of(19.9, 20, 20.1, enqueue_ms=0.99))

    assert found.verdict == "slower"
    assert code == TooNoisy.exit_code
    assert lines[0].endswith("at batch 32 (the fastest, bound by the host)")


def test_gate_on_clear_records_passes_or_fails():
    assert judged(STEADY, STEADY)[:2] == (0, [])
    code, lines, _ = judged(STEADY, of(19.9, 20, 20.1))
    assert (code, len(lines)) == (Regression.exit_code, 1)
    assert judged(STEADY, of(9.0, 10.0, 11.0), share=None)[:2] == (0, [])


def test_gate_ranks_a_regression_above_a_bad_record_above_noise():
    noisy, slower = compare(STEADY, of(9.0, 10.0, 11.0)), compare(STEADY, of(19.9, 20, 20.1))
    unmatched = BadRequest("NEW has no record of vgg16")

    assert gate([noisy], 0.03, [unmatched]) == BadRequest.exit_code
    assert gate([noisy, slower], 0.03, [unmatched]) == Regression.exit_code
    assert gate([noisy, compare(STEADY, STEADY)], 0.03, []) == TooNoisy.exit_code


def of_two(*small_ms: float, large: Record = STEADY) -> Record:
    """Return a record of batch size 1, and of that of ``large``."""
    small = replace(of(*small_ms).rows[0], batch_size=1)
    return replace(large, rows=(small, *large.rows))


def test_gate_names_each_slower_batch_once_though_it_is_the_fastest():
    slower = of_two(19.9, 20, 20.1, large=of(19.9, 20, 20.1))
    code, (line,), found = judged(of_two(9.99, 10, 10.01), slower)

    assert code == Regression.exit_code
    assert found.best not in found.rows
    assert [line.count(words) for words in ("batch 1:", "batch 32:", "the fastest")] == [1, 1, 0]
    _, (line,), _ = judged(STEADY, of(19.9, 20, 20.1, batch_size=16))
    assert "the fastest (batch 32 and 16): 75.0 % slower" in line


def test_gate_names_other_noisy_rows_and_passes():
    code, lines, _ = judged(of_two(9.9, 10, 10.1), of_two(9.0, 10.0, 11.0))

    assert code == 0
    assert lines == ["too noisy to exclude that it is 3 % slower: resnet50 fp16 nchw eager at batch 1"]
