"""Joint answers of several recipes of one model."""

import io
import random

import pytest
from msgspec.structs import replace
from rich.console import Console
from support.records import example, row
from support.shown import markdown_of, print_report

from tputfind.analysis import recipes
from tputfind.analysis.answers import throughput_interval
from tputfind.record.record import Failure, Row
from tputfind.report import snippet, text
from tputfind.report.document import Table, Tiles
from tputfind.report.views import page


def measured(device_ms: float, dtype: str = "fp16", layout: str = "nchw", mode: str = "eager", batch_size: int = 8):
    """Return a record of a recipe with one row of this batch time, without SLO."""
    spec = replace(example().spec, dtype=dtype, layout=layout, mode=mode, slo_ms=None)
    return replace(example(), safe=None, spec=spec, rows=(in_three(row(batch_size, device_ms)),), notices=())


def in_three(one: Row) -> Row:
    """Return the row as if timed by two more processes with equal results."""
    return replace(one, timings=one.timings * 3)


def failed(**recipe: str):
    record = measured(1.0, **recipe)
    rows = (Row(batch_size=1, failure=Failure(kind="unsupported", message="no kernel")),)
    return replace(record, rows=rows, edge=None)


def printed(records, width=100):
    paper = io.StringIO()
    print_report(records, Console(file=paper, width=width))
    return paper.getvalue()


def test_best_recipe_is_named_with_gain_over_eager_in_its_dtype():
    records = [
        measured(8.0, dtype="fp32"),
        measured(4.0),
        measured(2.5, layout="nhwc"),
        measured(2.0, mode="compile"),
        measured(1.0, layout="nhwc", mode="compile"),
        failed(mode="cudagraph"),
    ]

    told = dict(recipes.answers(records))

    assert told["Best recipe"] == "fp16 nhwc compile, batch 8: 8000 samples/s, 4.00 times fp16 nchw eager"
    assert told["By mode"] == "fp16 nchw compile 2.00 times eager; fp16 nhwc compile 2.50 times eager"
    assert told["By layout"] == "fp16 nhwc eager 1.60 times nchw; fp16 nhwc compile 2.00 times nchw"


def test_chosen_allocators_are_recipes_of_the_same_work():
    native, expandable = (
        replace(one, spec=replace(one.spec, allocator=name), environment=replace(one.environment, allocator_conf=conf))
        for one, name, conf in (
            (measured(4.0), "native", None),
            (measured(2.0), "expandable", "expandable_segments:True"),
        )
    )

    assert text.are_recipes([native, expandable])
    assert recipes.names_of([native, expandable]) == ["allocator=native", "allocator=expandable"]
    unlike = replace(expandable, spec=replace(expandable.spec, allocator=None))
    assert not text.are_recipes([measured(4.0), unlike])


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"instances": 2}, ["instances=1", "instances=2"]),
        ({"phase": "train"}, ["plain", "train"]),
        ({}, ["", ""]),
    ],
)
def test_recipe_to_which_others_add_words_has_a_name(fields, names):
    one = measured(4.0, dtype="fp32")

    assert recipes.names_of([one, replace(one, spec=replace(one.spec, **fields))]) == names


def test_recipe_timed_in_one_process_is_marked():
    """The variation between processes is then unknown, and ``compare`` would not judge the two."""
    once = measured(2.0, mode="compile")
    once = replace(once, rows=(row(8, 2.0),))

    told = dict(recipes.answers([measured(4.0), once]))

    assert told["Best recipe"].endswith("2.00 times fp16 nchw eager (timed in one process)")


def test_fastest_recipe_at_smallest_batch_is_named_if_another():
    def of_two(small_ms: float, large_ms: float, mode: str):
        record = measured(large_ms, mode=mode, batch_size=64)
        return replace(record, rows=(in_three(row(1, small_ms)), *record.rows))

    records = [of_two(4.0, 10.0, "eager"), of_two(2.0, 5.0, "compile"), of_two(0.8, 9.9, "cudagraph"), failed()]

    told = dict(recipes.answers(records))

    assert told["Best recipe"].startswith("fp16 nchw compile, batch 64")
    assert told["At batch 1"] == "fp16 nchw cudagraph, batch 1: 1250 samples/s, 5.00 times fp16 nchw eager"


def test_smallest_batch_answer_is_omitted_if_redundant_or_not_in_all():
    assert "At batch 8" not in dict(recipes.answers([measured(4.0), measured(2.0, mode="compile")]))
    assert not any(
        label.startswith("At batch")
        for label, _ in recipes.answers([measured(4.0, batch_size=4), measured(2.0, mode="compile")])
    )


def timed(*processes_ms: float, mode: str = "eager", batch_size: int = 8):
    """Return a record of a recipe with one row; each process has its own batch time."""
    timings = tuple(timing for ms in processes_ms for timing in row(batch_size, ms).timings)
    rows = (replace(row(batch_size, 1.0), timings=timings),)
    return replace(measured(1.0, mode=mode), rows=rows)


def by_mode(*records):
    return dict(recipes.answers(records))["By mode"]


@pytest.mark.parametrize(
    ("plain_ms", "compiled_ms", "batch_size", "told"),
    [
        ((1.0, 1.0, 1.0), (0.999, 0.999, 0.999), 8, "compile 1.00 times eager (within the noise)"),
        ((0.99, 1.0, 1.01), (0.96, 0.97, 0.98), 8, "compile 1.03 times eager"),
        ((0.99, 1.0, 1.01), (1.02, 1.03, 1.04), 8, "compile 0.97 times eager"),
        ((0.99, 1.0, 1.01), (0.98, 0.99, 1.0), 8, "compile 1.01 times eager (within the noise)"),
        ((0.99, 1.0, 1.01), (1.98, 2.0, 2.02), 16, "compile 1.00 times eager (within the noise)"),
        ((1.0, 1.0), (0.9964, 0.9964), 8, "compile 1.004 times eager"),  # a certain difference never rounds to 1
        ((1.0, 1.0), (1.004, 1.004), 8, "compile 0.996 times eager"),
    ],
)
def test_gain_is_noise_if_the_interval_of_its_ratio_includes_1(plain_ms, compiled_ms, batch_size, told):
    assert by_mode(timed(*plain_ms), timed(*compiled_ms, mode="compile", batch_size=batch_size)) == told


def test_gain_is_no_noise_because_intervals_of_both_rates_overlap():
    plain, compiled = timed(0.99, 1.0, 1.01), timed(0.96, 0.97, 0.98, mode="compile")
    here, there = (throughput_interval(record.rows[0]) for record in (compiled, plain))

    assert here.low < there.high
    assert "noise" not in by_mode(plain, compiled)


def test_processes_that_differ_without_measure_are_noise():
    told = by_mode(timed(1.0, 1.0), timed(0.1, 5.0, mode="compile"))

    assert "within the noise" in told


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("apart", [(0.001, 0.001), (0.02, 0.02), (0.002, 0.05)])
def test_equal_recipes_are_rarely_distinguished_in_simulations(processes, apart):
    chance = random.Random(processes)

    def one(spread, mode):
        return timed(*(chance.gauss(1, spread) for _ in range(processes)), mode=mode)

    told = [by_mode(one(apart[0], "eager"), one(apart[1], "compile")) for _ in range(300)]

    assert sum("within the noise" not in text for text in told) <= 27  # 5 % would be 15


def test_recipes_without_timed_rows_have_no_answers():
    assert not list(recipes.answers([failed(), failed(mode="compile")]))


def test_report_shows_recipes_side_by_side_including_failed_ones():
    records = [measured(4.0), measured(2.0, mode="compile"), failed(mode="cudagraph")]

    shown = printed(records, width=80)

    assert "resnet50 in 3 recipes" in shown
    assert any("cudagraph" in line and "unsupported" in line for line in shown.splitlines())
    assert "model = torch.compile(model, dynamic=False)" in shown
    assert "resnet50 in 3 recipes" in markdown_of(records).decode()
    assert "recipes" not in markdown_of(records[:1]).decode()


def test_the_lines_of_python_say_how_it_was_run():
    graph = list(snippet.lines(measured(1.0, layout="nhwc", mode="cudagraph"), 8))

    assert 'model = model.to("cuda", torch.float16).to(memory_format=torch.channels_last)' in graph
    assert any("torch.cuda.graph(graph)" in line for line in graph)
    assert 'with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):' in list(
        snippet.lines(measured(1.0, dtype="amp-bf16"), 8)
    )


def test_simplest_of_tied_recipes_is_the_best():
    eager, graph = timed(0.99, 1.0, 1.01), timed(0.98, 0.99, 1.0, mode="cudagraph")
    compiled = timed(0.97, 0.98, 0.99, mode="compile")

    told = dict(recipes.answers([compiled, graph, eager]))

    best = "fp16 nchw eager, batch 8: 8000 samples/s, the simplest of 3 that tie within the noise"
    assert told["Best recipe"] == best
    assert recipes.best_of([compiled, graph])[0].spec.mode == "cudagraph"
    assert recipes.best_of([eager, timed(0.49, 0.5, 0.51, mode="compile")])[0].spec.mode == "compile"


def under_slo(slo_ms: float, small_ms: float, large_ms: float, mode: str = "eager"):
    """Return a record of batches 1 and 64 with these times, under an SLO."""
    record = measured(large_ms, mode=mode, batch_size=64)
    spec = replace(record.spec, slo_ms=slo_ms)
    return replace(record, spec=spec, rows=(in_three(row(1, small_ms)), *record.rows))


def throughput_and_latency():
    """Return recipes: ``compile``, the fastest, exceeds the SLO at its fastest batch and is slow at the other."""
    return [
        under_slo(5.0, 4.0, 12.0),
        under_slo(5.0, 3.0, 8.0, mode="compile"),
        under_slo(5.0, 1.0, 9.0, mode="cudagraph"),
    ]


def test_best_recipe_with_slo_is_the_fastest_within_the_slo():
    told = dict(recipes.answers(throughput_and_latency()))

    assert told["Best recipe"] == (
        "fp16 nchw cudagraph, batch 1: 1000 samples/s, p99 1.980 ms within --slo 5 ms, 4.00 times fp16 nchw eager"
    )
    assert told["By mode"] == "compile 1.33 times eager; cudagraph 4.00 times eager"


def test_report_with_slo_marks_and_codes_the_recipe_within_the_slo():
    shown = printed(throughput_and_latency())
    lines = shown[shown.index("resnet50 in 3 recipes") :].splitlines()

    (marked,) = (line for line in lines if line.endswith("  B"))
    assert marked.split()[:3] == ["cudagraph", "5", "1"]
    assert "within SLO" in lines[2]
    assert "B the best recipe within --slo 5 ms" in lines
    assert any("torch.cuda.CUDAGraph()" in line for line in lines)
    assert not any("torch.compile" in line for line in lines)


def opening_of(records):
    """Return the tiles and the table at the top of a page."""
    opening = page.document(records).sections[0].sections
    (tiles,) = (one for part in opening[:1] for one in part.sections if isinstance(one, Tiles))
    (beside,) = (one for one in opening if isinstance(one, Table))
    return tiles.tiles, beside


def test_page_with_slo_shows_the_same_recipe_in_tiles_and_table():
    tiles, beside = opening_of(throughput_and_latency())

    assert {tile.label: tile.figure for tile in tiles}["Best recipe"] == "fp16 nchw cudagraph"
    (strong,) = beside.strong
    assert "cudagraph" in beside.rows[strong][0].text


def test_page_bolds_the_recipe_of_its_tiles_when_knees_differ():
    """The batch to deploy of the best recipe may be slower than that of another, because its knee is earlier."""
    best = measured(6.0, mode="cudagraph", batch_size=64)
    best = replace(best, rows=(in_three(row(8, 0.785)), *best.rows))
    tiles, beside = opening_of([best, measured(6.2, batch_size=64)])

    (strong,) = beside.strong
    assert "cudagraph" in tiles[0].figure
    assert "cudagraph" in beside.rows[strong][0].text


def test_recipes_that_all_miss_the_slo_have_no_best():
    records = [under_slo(0.1, 4.0, 12.0), under_slo(0.1, 3.0, 8.0, mode="compile")]
    shown = printed(records)

    assert recipes.best_of(records) is None
    assert dict(recipes.answers(records)) == {"Best recipe": "no recipe has p99 within --slo 0.1 ms"}
    assert "B the best recipe" not in shown
    assert "```python" not in markdown_of(records).decode()
    (line,) = (line for line in shown.splitlines() if line.startswith("compile"))
    assert line.split() == ["compile", "5", "none"]


def test_records_side_by_side_with_slo_show_their_batch_within_it():
    other = replace(under_slo(5.0, 2.0, 20.0), spec=replace(example().spec, model="vgg16", slo_ms=5.0))
    shown = printed([under_slo(5.0, 4.0, 12.0), other])

    assert "2 records, each at its fastest batch within the SLO" in shown
    assert shown.splitlines()[-1].split()[:4] == ["vgg16", "5", "1", "500.0"]


def test_newest_record_of_a_recipe_counts_and_unlike_slos_are_no_recipes():
    old, new = replace(measured(4.0), started="2026-01-01"), replace(measured(5.0), started="2026-01-02")
    compiled = measured(2.0, mode="compile")
    within = replace(compiled, spec=replace(compiled.spec, slo_ms=9.0))

    assert text.models_in_recipes([new, old]) == []
    assert text.models_in_recipes([new, old, compiled]) == [[new, compiled]]
    assert text.models_in_recipes([new, within]) == []
    assert "2 records, each at its fastest batch within its own SLO, if it has one" in printed([new, within])
