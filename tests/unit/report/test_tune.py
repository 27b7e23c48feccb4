"""The report of a race: each ratio has its two variants, and its files are recognised."""

import re

import pytest
from msgspec.structs import replace
from support.folders import ROOT

from tputfind import load
from tputfind.commands.report import main
from tputfind.errors import BadRequest
from tputfind.record.record import Failure
from tputfind.report.outputs import forms, is_report
from tputfind.report.results import document_of, text


def race(name="nvidia-h200-x2/tune/resnet50-fp16"):
    return load(ROOT / f"results/{name}.json")


def answers_of(found):
    return " ".join(text(found).partition("Winner ")[2].split())


def test_every_ratio_names_its_variant_and_the_one_it_met():
    told = answers_of(race())

    assert (
        "Brought fp16 nhwc eager 1.444 (1.391 to 1.498) times fp16 nchw eager; fp16 nhwc compile:freezing 1.839" in told
    )
    assert "the winner 2.65 times fp16 nchw eager; in samples/s at batch 2048" in told
    assert "Not told apart fp16 nchw compile:freezing 0.976 (0.938 to 1.015) times fp16 nhwc compile:freezing" in told


@pytest.mark.parametrize(
    ("interrupted", "words"),
    [(False, "not measured in full"), (True, "the race was interrupted before it was measured in full")],
)
def test_winner_without_a_record_has_only_the_known_reason(interrupted, words):
    told = answers_of(replace(race(), record=None, interrupted=interrupted))

    assert told.startswith(f"fp16 nhwc compile:freezing; {words} Brought ")


def test_compiling_is_repaid_compared_with_the_fastest_that_is_not_compiled():
    assert "which 251 batches of 2048 make up for, compared with fp16 nhwc eager" in answers_of(race())
    found = race()
    compiled = tuple(one for one in found.contenders if one.spec.mode not in {"eager", "cudagraph"})
    assert "make up for" not in answers_of(replace(found, contenders=compiled))


def test_compiling_is_repaid_by_all_instances_together():
    found = race()
    rows = tuple(replace(one, batch_size=one.batch_size // 2, samples=one.batch_size) for one in found.record.rows)
    two = replace(found, winner=replace(found.winner, instances=2), record=replace(found.record, rows=rows))

    assert "which 251 batches of 1024 make up for" in answers_of(two)


def test_race_for_latency_answers_at_the_batch_size_of_the_race():
    found = race()
    (smallest, *_) = found.record.rows
    lowest = replace(found, goal="latency", batch_size=smallest.batch_size)

    assert re.match(rf"fp16 nhwc compile:freezing, p50 \S+ ms at batch {smallest.batch_size}\b", answers_of(lowest))
    assert f"torch.randn({smallest.batch_size}, " in text(lowest)


def test_race_for_latency_is_repaid_by_the_latency_that_is_saved():
    found = race()
    rows = tuple(replace(one, timings=tuple(map(with_latency_of_two, one.timings))) for one in found.record.rows)
    lowest = replace(found, goal="latency", record=replace(found.record, rows=rows))
    batches = [int(re.search(r"which (\d+) batches", answers_of(one))[1]) for one in (found, lowest)]

    assert batches[0] / batches[1] == pytest.approx(2, rel=0.1)


def with_latency_of_two(timing):
    each_ms = sum(timing.device_ms) / len(timing.device_ms)
    return replace(timing, latency_ms=(2 * each_ms,) * 100)


def test_compiling_takes_as_long_as_in_the_first_process_of_the_race():
    found = race()
    (won, *others) = [one for one in found.contenders if one.spec == found.winner]
    assert not others
    first = won.turns.rounds[0]
    slow = replace(first, speeds=(first.speeds[0], replace(first.speeds[1], compile_s=500.0)))
    turns = replace(won.turns, rounds=(slow, *won.turns.rounds[1:]))
    contenders = tuple(replace(one, turns=turns) if one is won else one for one in found.contenders)

    assert "takes 500 s, which" in answers_of(replace(found, contenders=contenders))


def test_row_that_failed_after_the_race_is_not_the_answer():
    found = race()
    (smallest, *others) = found.record.rows
    lost = replace(smallest, timings=(), failure=Failure(kind="out_of_memory", message="no memory"))
    record = replace(found.record, rows=(lost, *others))
    lowest = replace(found, goal="latency", batch_size=smallest.batch_size, record=record)

    assert "p50" in answers_of(replace(found, goal="latency", batch_size=smallest.batch_size))
    assert "p50" not in answers_of(lowest)
    assert f"torch.randn({smallest.batch_size}, " not in text(lowest)


def test_markdown_of_a_race_that_failed_is_recognised_as_a_report(tmp_path):
    first, *others = race().contenders
    lost = (replace(one, outcome="failed", judgement=None, of_winner=None, turns=None) for one in others)
    failed = replace(race(), contenders=(replace(first, of_winner=None), *lost), record=None)
    (path := tmp_path / "race.md").write_bytes(forms(document_of(failed))["md"]())

    assert is_report(path, "md")


def test_race_is_saved_again_over_itself_and_not_over_another(tmp_path, capsys):
    path = tmp_path / "race.json"
    one, other = (ROOT / f"results/nvidia-h200/tune/{name}-fp16.json" for name in ("resnet50", "vit_b_16"))

    def save(source):
        return main({"records": [source], "save": [path], "overwrite": False}, show_traceback=False)

    assert save(one) == 0
    path.write_text(path.read_text().replace("  ", " "))
    assert save(one) == 0
    with pytest.raises(BadRequest, match=r"race\.json"):
        save(other)
