import io
import random
import re
import subprocess
import sys
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console
from support.records import CPU_CAN, can_of, example

from tputfind.analysis import clocks as findings
from tputfind.commands import clocks
from tputfind.errors import BadRequest
from tputfind.record.clocks import (
    Cell,
    Figures,
    Methods,
    Pipeline,
    StageCell,
    figures_of,
    loops,
    schedule,
    split_by_turn,
    turn_counts,
)
from tputfind.record.record import Failure
from tputfind.record.spec import Spec
from tputfind.record.untrusted import indent_json
from tputfind.report.renderers.markdown import render_markdown
from tputfind.report.renderers.terminal import print_document
from tputfind.report.views.clocks import document

MEANS = {
    "host_clock": 0.2,
    "host_clock_synchronised": 4.12,
    "events_waited": 4.1,
    "events_at_end": 4.0,
    "graph": 1.0,
    "submission": 3.9,
    "submission_and_device": 4.13,
    "device_span": 4.1,
}
COPIES = {"warm": 0.0, "pageable": 1.6, "pinned": 0.8}
BROKEN = Failure(kind="error", message="RuntimeError: operation not permitted when stream is capturing")


def steady(mean_ms: float, count: int = 45) -> Figures:
    """Return figures that vary by a thousandth."""
    return Figures.of([mean_ms * (1 + (-1) ** number / 1000) for number in range(count)])


def cold(mean_ms: float) -> Figures:
    return Figures.of([180 * mean_ms, *[mean_ms] * 49])


def methods(device: str = "cuda:0", **means: float | None) -> Methods:
    """Return all timing methods of a device, with other means or, for None, a failure."""
    cells = []
    for ways, condition in [*loops(can_of(device), cold=False), *loops(can_of(device), cold=True)]:
        for way in ways:
            mean_ms = means.get(f"{way}_{condition}", (MEANS | means)[way])
            if mean_ms is None:
                cells.append(Cell(way=way, condition=condition, failure=BROKEN))
            else:
                figures = cold(mean_ms) if condition == "cold" else steady(mean_ms + COPIES[condition])
                cells.append(Cell(way=way, condition=condition, figures=figures))
    return made(cells)


def made(cells) -> Methods:
    found = Methods(
        tputfind="0.1.0",
        command="tputfind clocks resnet50 --dtype fp16",
        started="2026-11-20T12:00:00+00:00",
        spec=Spec(model="resnet50", dtype="fp16", batch_sizes=(32,)),
        environment=example().environment,
        input_shape="3x224x224",
        batch_size=32,
        repeats=50,
        drop=5,
        cells=tuple(cells),
    )
    return replace(found, sentences=findings.method_sentences(found))


def pipeline(wholes=(57.1, 48.2, 48.0), first=(27.0, 26.9)) -> Pipeline:
    times = {
        "synchronised": (first[0], 10.0, 20.0, wholes[0]),
        "events": (first[1], 10.1, 20.1, wholes[1]),
        "untimed": (None, None, None, wholes[2]),
    }
    found = Pipeline(
        tputfind="0.1.0",
        command="tputfind clocks resnet50 'a|b.py:make'",
        started="2026-11-20T12:00:00+00:00",
        specs=(Spec(model="resnet50"), Spec(model="a|b.py:make")),
        environment=example().environment,
        input_shapes=("3x224x224", "16"),
        batch_size=32,
        repeats=200,
        drop=5,
        host_work_ms=10.0,
        cells=tuple(
            StageCell(stage=stage, way=way, figures=steady(mean_ms, 39 if stage == "whole" else 195))
            for way, means in times.items()
            for stage, mean_ms in zip(("first", "work", "second", "whole"), means, strict=True)
            if mean_ms is not None
        ),
    )
    return replace(found, sentences=findings.pipeline_sentences(found))


def about(found, words: str) -> str:
    (sentence,) = (sentence for sentence in found.sentences if words in sentence)
    return sentence


def test_every_timing_mistake_is_quantified():
    found = methods()

    assert about(found, "host clock alone") == "The host clock alone sees 4.9 % of the time (0.2000 ms of 4.120 ms)."
    assert about(found, "No warm-up") == (
        "No warm-up: the mean of 50 is 4.58 times what it is warm, and the first call alone takes 180 times as long "
        "(741.6 ms)."
    )
    assert "0.1 % less" not in about(found, "A single sample would do here")
    assert about(found, "Waiting after each batch") == (
        "Waiting after each batch makes it seem 2.5 % slower than back to back (4.100 ms against 4.000 ms)."
    )
    assert "agree within 1 %" in about(found, "event pair")
    assert about(found, "Copying the input").endswith("from pageable memory adds 39 %, from pinned memory adds 19 %.")
    assert about(found, "CUDA graph") == (
        "Python holds the device up: as a CUDA graph the batch takes 1.000 ms instead of 4.000 ms."
    )


@pytest.mark.parametrize(
    ("means", "words", "expected"),
    [
        ({"host_clock": 4.1, "submission": 0.2}, "host clock alone", "only because the launch queue is full: 45 of 45"),
        ({"host_clock": 4.1}, "host clock alone", "takes nearly as long to be submitted"),
        ({"host_clock": 2.0, "submission": 0.2}, "host clock alone", "sees 49 % of the time"),
        ({"host_clock": 2.0, "submission": 0.2}, "host clock alone", "45 of 45 calls waited"),
        ({"host_clock": 9.0, "submission": 9.0}, "host clock alone", "218 % of the time"),
        ({"host_clock": 4.1, "submission": 3.0}, "host clock alone", "does not wait for the device"),
        ({"host_clock_synchronised_cold": 0.8}, "No warm-up", "the mean of 50 is not longer for it"),
        ({"events_waited": 4.01}, "Waiting after", "does not matter here"),
        ({"events_waited": 3.0}, "Waiting after", "25 % faster than back to back"),
        ({"events_waited": 3.0}, "event pair", "reads 37 % more"),
        ({"events_waited": 6.0}, "event pair", "reads 31 % less"),
        ({"host_clock_synchronised_pinned": None}, "Copying", "from pinned memory fails (RuntimeError: operation"),
        ({"submission": 0.2}, "CUDA graph", "Launched as a whole, as a CUDA graph, the batch takes 75 % less"),
        ({"graph": 4.01}, "CUDA graph", "gains less than 1 % here"),
        ({"graph": 5.0}, "CUDA graph", "gains nothing here: the batch takes 25 % more"),
        ({"graph": None}, "CUDA graph", "could not be captured and replayed (RuntimeError: operation not permitted"),
    ],
)
def test_a_sentence_is_by_case(means, words, expected):
    assert expected in about(methods(**means), words)


def compared(base_ms: Sequence[float], other_ms: Sequence[float]) -> str:
    """Return the finding about waiting after each batch, for samples in milliseconds."""
    ways = {"events_at_end": base_ms, "events_waited": other_ms}
    cells = [Cell(way=way, condition="warm", figures=Figures.of(samples_ms)) for way, samples_ms in ways.items()]
    return about(made(cells), "Waiting after")


MOODS = [mood for mood in (1, 1.8, 1.1, 1.3, 1, 1.7, 1.2, 1, 1.5) for _ in range(5)]
SWINGS = [1 + 0.2 * (-1) ** number for number in range(45)]


@pytest.mark.parametrize(
    ("base_ms", "other_ms", "said"),
    [
        # A slowdown that both methods share hides nothing.
        ([4 * mood for mood in MOODS], [4.2 * mood for mood in MOODS], "5 % slower"),
        ([4 * mood for mood in MOODS], [4.01 * mood for mood in MOODS], "does not matter"),
        ([4 * mood for mood in MOODS], [4.2 * mood for mood in MOODS[::-1]], "stands out from the noise"),
        # A difference of zero is not certain.
        ([4 * mood for mood in SWINGS], [4 * 2 - 4 * mood for mood in SWINGS], "stands out from the noise"),
        # Ten samples are eight turns of one and one of two.
        ([4.0] * 10, [4.4] * 8 + [4.4 + 0.2, 4.4 + 0.2], "seem 11 % slower"),
        ([4.0, 9.0, 5.0], [6.0, 5.0, 9.0], "stands out from the noise"),
        ([4.0, 4.01, 3.99], [6.0, 6.01, 6.0], "50 % slower"),
    ],
)
def test_difference_between_methods_is_judged_by_turns(base_ms, other_ms, said):
    assert said in compared(base_ms, other_ms)


@pytest.mark.parametrize("batches_in_a_mood", [2, 20, 200])
def test_equal_methods_on_drifting_host_rarely_seem_to_differ(batches_in_a_mood):
    """The host slows down by up to 80 %, and a graph's turn lies between those of the two methods."""
    chance, mood = random.Random(20261121), 1.0

    def batch_ms() -> float:
        nonlocal mood
        if chance.random() < 1 / batches_in_a_mood:
            mood = chance.uniform(1, 1.8)
        return 4 * mood * chance.uniform(0.98, 1.02)

    wrong = 0
    for _ in range(300):
        taken: list[list[float]] = [[], [], []]
        for number, count in enumerate(turn_counts(45)):
            for way in range(3):
                taken[(way + number) % 3] += [batch_ms() for _ in range(count)]
        wrong += "seem" in compared(*taken[:2])

    print(f"{wrong} of 300 are said to differ")
    assert wrong <= 9


@given(st.integers(1, 10_000))
def test_turns_share_the_timings_evenly(timings):
    counts = turn_counts(timings)

    assert sum(counts) == timings
    assert len(counts) >= min(timings, 9)
    assert 1 <= min(counts) <= max(counts) <= min(counts) + 1 <= 10


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=100))
def test_the_samples_by_turn_are_all_of_them_in_order(samples_ms):
    turns = split_by_turn(samples_ms)

    assert [ms for turn in turns for ms in turn] == samples_ms
    assert [len(turn) for turn in turns] == turn_counts(len(samples_ms))


@given(st.integers(3, 300), st.integers(0, 20), st.sampled_from(["cpu", "cuda:0"]))
def test_loops_take_timings_in_turns_but_host_clock_at_a_stretch(kept, drop, device):
    planned = loops(can_of(device), cold=False)
    turns = schedule(planned, kept + drop, drop)

    for loop in planned:
        counts = [count for turn in turns for taken, count in turn if taken == loop]
        assert sum(counts) == kept + drop
        alone = loop[0] == ("host_clock",)
        assert counts == ([kept + drop] if alone else [drop][: drop > 0] + turn_counts(kept))
    in_turn = [turn for turn in turns[1:] if turn]
    assert len({turn[0][0] for turn in in_turn}) == min(len(in_turn), len(in_turn[0]))  # another loop begins
    assert all({loop for loop, _ in turn} == {loop for loop, _ in in_turn[0]} for turn in in_turn)


@given(st.integers(3, 300), st.integers(0, 20))
def test_without_warm_up_there_is_one_stretch(repeats, drop):
    for loop in loops(can_of("cuda:0"), cold=True):
        assert [turn for turn in schedule([loop], repeats + drop, drop) if turn] == [[(loop, repeats + drop)]]


def test_copy_cost_within_noise_is_named_noise():
    noise = [1 + 0.3 * (-1) ** (number // 5) for number in range(45)]
    cells = [
        Cell(way="host_clock_synchronised", condition=condition, figures=Figures.of(samples_ms))
        for condition, samples_ms in {
            "warm": [4.0] * 45,
            "pageable": [4.2 * one for one in noise],
            "pinned": [3.5 * one for one in noise],
        }.items()
    ]

    said = about(made(cells), "Copying")

    assert "from pageable memory adds 8.5 %, which does not stand out from the noise" in said
    assert "from pinned memory takes off 9.6 %, which does not stand out from the noise" in said


def test_less_than_one_percent_within_the_noise_is_no_figure():
    """A warm loop with a first sample of 0, and a pinned one of three samples with a mean 0.14 % higher."""
    warm, pinned = Figures.of([0.0] + [745763.0] * 8), Figures.of([726047.0, 632707.0, 632707.0])
    cells = [
        Cell(way="host_clock_synchronised", condition="warm", figures=warm),
        Cell(way="host_clock_synchronised", condition="pinned", figures=pinned),
    ]

    assert "from pinned memory adds nothing that stands out from the noise." in about(made(cells), "Copying")


def test_cpu_methods_get_one_sentence_about_inapplicable_parts():
    on_cpu = replace(example().environment, device="cpu", can=CPU_CAN)

    sentences = findings.method_sentences(replace(methods("cpu"), environment=on_cpu))

    assert "events, CUDA graphs and pinned copies do not apply" in sentences[0]
    assert not any("pinned" in sentence or "CUDA graph" in sentence for sentence in sentences[1:])


@pytest.mark.parametrize(
    ("wholes", "words", "expected"),
    [
        ((57.1, 48.2, 48.0), "Synchronising", "makes the whole take 19 % longer (57.10 ms against 48.00 ms not timed)"),
        ((57.1, 48.2, 48.0), "Reading events", "changes the whole by less than 1 %"),
        ((48.1, 48.2, 48.0), "Synchronising", "changes the whole by less than 1 %"),
        ((40.0, 48.2, 48.0), "Synchronising", "costs the whole nothing here"),
        ((57.1, 48.2, 48.0), "stage times", "agree within 0.5 %"),
    ],
)
def test_pipeline_timing_cost_is_described_by_case(wholes, words, expected):
    assert expected in about(pipeline(wholes), words)


def test_differing_stage_times_are_reported():
    assert "differ by up to 30 %" in about(pipeline(first=(35.0, 27.0)), "stage times")


TIMES = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))
FIGURES = st.builds(
    lambda first_ms, others_ms, count: Figures.of([first_ms, *[others_ms] * count]), TIMES, TIMES, st.integers(0, 9)
)


@st.composite
def cells_of(draw, device: str):
    planned = [*loops(can_of(device), cold=False), *loops(can_of(device), cold=True)]
    return [
        Cell(way=way, condition=condition, figures=draw(FIGURES))
        if draw(st.integers(0, 9))
        else Cell(way=way, condition=condition, failure=BROKEN)
        for ways, condition in planned
        for way in ways
        if draw(st.integers(0, 19))
    ]


def check_sense(sentences) -> None:
    for sentence in sentences:
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert not re.search(r"-\d|\bnan\b|\binf\b|None|e\+\d|\(\)|  ", sentence), sentence
        for amount in re.findall(r"([\d.]+) % (?:slower|faster|more|less|longer)", sentence):
            assert float(amount) >= 0
        told = [float(amount) for amount in re.findall(r"(?:adds|take|takes|seem|reads|slowest) ([\d.]+) %", sentence)]
        if sentence.startswith("A single sample"):  # the sentence gives both ends, and one of them is far
            told = [max(told)] if told else []
        assert all(amount >= 1 for amount in told), sentence
        for ratio in re.findall(r"([\d.]+) times", sentence):
            assert float(ratio) > 1, sentence


@settings(max_examples=50)
@given(st.sampled_from(["cuda:0", "cpu"]).flatmap(lambda device: st.tuples(st.just(device), cells_of(device))))
def test_whatever_the_figures_are_the_sentences_make_sense(drawn):
    device, cells = drawn
    environment = replace(example().environment, device=device)

    sentences = findings.method_sentences(replace(made([]), cells=tuple(cells), environment=environment))

    check_sense(sentences)
    alone, whole = figures_of(cells, "host_clock"), figures_of(cells, "host_clock_synchronised")
    if device == "cuda:0" and alone and whole and whole.mean_ms > 0 and alone.mean_ms < 0.5 * whole.mean_ms:
        assert any(sentence.startswith("The host clock alone sees") for sentence in sentences)


@settings(max_examples=50)
@given(st.sampled_from(["cuda:0", "cpu"]), st.data())
def test_whatever_a_pipeline_takes_the_sentences_make_sense(device, data):
    environment = replace(example().environment, device=device)
    cells = tuple(replace(cell, figures=data.draw(FIGURES)) for cell in pipeline().cells)

    check_sense(findings.pipeline_sentences(replace(pipeline(), cells=cells, environment=environment)))


def shown(found) -> str:
    paper = io.StringIO()
    print_document(document(found), Console(file=paper, width=100))
    return "\n".join(line.rstrip() for line in paper.getvalue().splitlines()) + "\n"


def test_the_tables_are_as_they_were(golden):
    golden("clocks.txt", (shown(methods(graph=None)) + shown(pipeline())).encode())


def test_the_markdown_is_as_it_was(golden):
    golden("clocks.md", render_markdown(document(methods())) + b"\n" + render_markdown(document(pipeline())))


def test_the_tables_fit_80_columns():
    paper = io.StringIO()
    print_document(document(methods()), Console(file=paper, width=80))

    assert "host clock, synchronised" in paper.getvalue()
    assert max(map(len, paper.getvalue().splitlines())) <= 80


@pytest.mark.parametrize("found", [methods(graph=None), pipeline()])
def test_the_json_holds_every_sample_and_reads_back(found):
    again = msgspec.json.decode(indent_json(found), type=Methods | Pipeline)

    assert again == found
    figures = next(cell.figures for cell in again.cells)
    assert figures.mean_ms == pytest.approx(sum(figures.samples_ms) / len(figures.samples_ms))
    assert figures.std_ms > 0


@pytest.mark.parametrize(
    ("models", "options", "expected"),
    [
        ([], {}, "name one MODEL, or two"),
        (["a", "b", "c"], {}, "name one MODEL, or two"),
        (["a"], {"repeats": "1"}, "--repeats: 1 is not between 2 and 10000"),
        (["a"], {"repeats": "7"}, "--drop 5 leaves fewer than 3 of --repeats 7"),
        (["a"], {"repeats": "9" * 5000}, "is not between 2"),
        (["a"], {"drop": "-1"}, "--drop: -1 is not between 0"),
        (["a"], {"batch_size": "1,2"}, "--batch-size: '1,2' is not a whole number"),
        (["a"], {"batch_size": "0", "dtype": "fp99"}, "--batch-size: 0 is not between 1"),
        (["a"], {"batch_size": "0", "dtype": "fp99"}, "'fp99' is not one of"),
        (["a"], {"warmup": "0"}, "--warmup 0"),
        (["a"], {"host_work": "10ms"}, "--host-work is what the CPU does between two models"),
        (["a", "b"], {"host_work": "10"}, "'10' is not a duration"),
        (["a", "b"], {"host_work": "0ms"}, "'0ms' is not above zero"),
        (["a", "b"], {"host_work": "1h"}, "'1h' is more than 1min"),
    ],
)
def test_a_request_that_cannot_be_carried_out_is_refused_in_one_line(models, options, expected):
    with pytest.raises(BadRequest, match=re.escape(expected)) as refused:
        clocks.read_request(models, options)

    assert "\n" not in refused.value.message


def test_clocks_defaults_match_the_help():
    asked = clocks.read_request(["a", "b"], {"repeats": None})

    assert (asked.batch_size, asked.repeats, asked.drop, asked.host_work_ms) == (32, 200, 5, 10.0)
    assert [spec.batch_sizes for spec in asked.specs] == [(32,), (32,)]
    assert clocks.read_request(["a"], {}).repeats == 50


def test_its_help_and_its_parent_leave_torch_alone():
    program = (
        "import sys, tputfind.commands\n"
        "try: tputfind.commands.main(['clocks', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'pandas', 'numpy', 'rich'} & set(sys.modules)\n"
        "import tputfind.commands.clocks, tputfind.report.views.clocks\n"
        "assert not {'torch', 'pandas', 'numpy'} & set(sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
