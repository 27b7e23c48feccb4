"""The page of records, and the plots on it."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import msgspec
import pytest
from msgspec.structs import replace
from support.folders import RESULTS, record_paths
from support.pages import Page
from support.records import CPU_CAN, example, row
from support.shown import page_of

import tputfind
from tputfind.record.environment import RankDevice
from tputfind.record.files import load_records
from tputfind.record.record import Edge, Failure, Notice, Row, Timing, Trial
from tputfind.report.charts import chart, charts, draw
from tputfind.report.views import page
from tputfind.report.views.page import groups

pytestmark = pytest.mark.usefixtures("plots_drawn_once")
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "$x_1^$ \\frac{1}{2} $",
    "&amp;<!-- ]]>",
    "\N{PILE OF POO} url(#a) javascript:alert(1)",
    "_hidden",
    "{{ 7 * 7 }}{% raw %}",
    "</style></script></svg></title>",
    "W" * 300,
)


def named(name):
    """Return a record with this text in all its text fields."""
    record = example()
    failure = Failure(kind="error", message=name, traceback=f"Traceback of {name}")
    return replace(
        record,
        command=name,
        started=name,
        input_shape=name,
        tputfind=name,
        spec=replace(record.spec, model=name, weights=name),
        environment=replace(record.environment, device_name=name, host=name, cpu_name=name, driver=name),
        trials=(*record.trials, Trial(batch_size=9, failure=failure)),
        rows=(*record.rows, Row(batch_size=9, failure=failure)),
        notices=(Notice(kind=name, seen=name, cause=name, advice=name, batch_sizes=(9,)),),
    )


def long(count, processes=1):
    """Return a record with this number of rows."""
    rows = tuple(row(batch, 1 + batch / 50) for batch in range(1, count + 1))
    rows = tuple(replace(one, timings=one.timings * processes) for one in rows)
    return replace(example(), rows=rows, edge=Edge(largest_batch=count, limited_by="memory", fails_at=count + 1))


def part(document, name):
    """Return the first section of a part of a page."""
    return next(one for one in document.sections if one.name == name).sections[0]


def drawn(chart):
    return [point for one in chart.series for point in one.points]


def test_page_of_one_record_matches_golden_file(golden):
    golden("page.json", msgspec.json.format(msgspec.json.encode(page.document([example()])), indent=1) + b"\n")


def test_page_of_two_recipes_matches_golden_file(golden):
    faster = replace(example(), rows=(row(4, 2.5),), trials=(), edge=None, safe=None, notices=())
    faster = replace(faster, spec=replace(faster.spec, mode="cudagraph"))

    held = page.document([example(), faster])

    golden("page-of-two.json", msgspec.json.format(msgspec.json.encode(held), indent=1) + b"\n")


def test_page_text_is_complete_and_in_order():
    shown = Page(page_of([example()])).text()

    expected = [
        "resnet50 fp16 nchw 3x224x224 on NVIDIA Example",
        "Batch to deploy",
        "notices about these figures",
        "5, soaked for 50 batches, batch 6 does not fit in memory",
        "Throughput against batch size",
        "died: killed by SIGKILL",
        *(part for notice in example().notices for part in (notice.seen, notice.cause, notice.advice)),
        "out of memory: OutOfMemoryError: CUDA out of memory.",
        "tputfind resnet50 --dtype fp16 --slo 10ms",
        "granularity",
        "GPU-00000000",
        "method of measuring",
    ]
    place = 0
    for text in expected:  # a text may be part of an earlier one
        assert text in shown[place:], text
        place = shown.index(text, place)


def test_page_and_images_of_same_record_are_byte_identical(plots_drawn_once):
    def made():
        plots_drawn_once()
        drawing = charts.throughput([example()])
        return page_of([example()]), *(draw.image(drawing, ending) for ending in draw.ENDINGS)

    assert made() == made()


def test_hostile_text_of_a_record_stays_text():
    text = "".join(HOSTILE)
    tame, wild = (Page(page_of([named(name), replace(named(name), rows=(row(3, 2.0),))])) for name in ("x", text))

    assert [one.tag for one in wild.elements] == [one.tag for one in tame.elements]
    assert [sorted(one.attributes) for one in wild.elements] == [sorted(one.attributes) for one in tame.elements]
    assert text in wild.text()


def test_names_stand_in_the_legend_as_they_are():
    records = [replace(example(), spec=replace(example().spec, model=name)) for name in ("_a", "$b$", "<c>&")]

    legend = Page(draw.inline(charts.throughput(records)).svg.encode()).text()

    assert all(name in legend for name in ("_a", "$b$", "<c>&"))


def records_of_every_size():
    overlaid = [
        *load_records(RESULTS / "nvidia-h200/recipes/resnet50-fp16.json"),
        *map(tputfind.load_record, record_paths("nvidia-h200/kinds/*.json")[:4]),
    ]
    return {"one": [example()], "300 rows": [long(300, processes=3)], "ten": overlaid}


def test_page_of_ten_long_records_is_small_and_names_omissions():
    made = page_of([long(300, processes=1) for _ in range(10)])

    assert len(made) < 1_000_000
    assert "(the first 400 of 3000; all are in the record)" in Page(made).text()


@pytest.mark.parametrize(("name", "records"), records_of_every_size().items())
def test_page_is_small_and_self_contained(name, records):
    made = page_of(records)
    read = Page(made)

    assert len(made) < 1_000_000
    assert len(records) == (10 if name == "ten" else 1)
    assert not re.search(r"@import|url\((?!#)", made.decode())
    for element in read.elements:
        assert element.tag not in ("link", "img", "iframe", "object", "embed", "base", "image")
        assert "src" not in element.attributes
        assert (element.attributes.get("href") or "#").startswith("#")
    assert "http://" not in read.text()
    ids = [element.attributes["id"] for element in read.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', made.decode()))
    assert used <= set(ids)


def test_page_policy_allows_only_the_own_script():
    read = Page(page_of([example()]))

    (policy,) = (one.attributes["content"] for one in read.all("meta") if one.attributes.get("http-equiv"))

    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy
    assert len(read.all("script")) == 1
    assert not any(name.startswith("on") for one in read.elements for name in one.attributes)


def test_a_screen_reader_finds_its_way():
    read = Page(page_of([example(), long(12)]))

    assert read.all("html")[0].attributes["lang"] == "en"
    levels = [int(one.tag[1]) for one in read.elements if re.fullmatch(r"h[1-6]", one.tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(one.attributes.get("scope") in ("col", "row") for one in read.all("th"))
    pictures = [one for one in read.all("svg") if "figure" in one.within]
    assert len(pictures) == len(read.all("figure")) == len(read.all("figcaption")) >= 5
    ids = {one.attributes.get("id") for one in read.elements}
    for picture in pictures:
        assert picture.attributes["role"] == "img"
        assert set(picture.attributes["aria-labelledby"].split()) <= ids
    buttons = read.all("button")
    assert buttons
    assert all(one.within[-1] == "th" for one in buttons)


def test_a_row_that_failed_is_drawn_nowhere_and_unknown_is_never_zero():
    partly = Failure(kind="died", message="late")
    record = replace(example(), rows=(row(1, 4.0), replace(row(2, 4.0), failure=partly), row(4, 5.0)), trials=())

    for one in charts.charts([record]):
        assert all(point.y > 0 for point in drawn(one))
        if one.x.label == "batch size":
            assert [point.x for point in drawn(one)] == [1, 4]
    cells = page.rows_table([("", record)]).rows[1]
    assert {cell.text for cell in cells[1:-1]} == {""}
    assert {cell.number for cell in cells[1:-1]} == {None}


@pytest.mark.parametrize("rows", [(row(4, 5.0),), (row(1, 4.0), row(4, 5.0), row(5, 10.0))], ids=["one", "three"])
def test_the_plot_and_the_table_call_the_same_rows_the_best(rows):
    record = replace(example(), rows=rows, safe=None, notices=())

    marked = {(mark.kind, mark.x) for mark in charts.throughput([record]).marks}
    held = page.rows_table([("", record)])
    remarks = {row.batch_size: line[-1].text for row, line in zip(rows, held.rows, strict=True)}

    assert {(kind, batch) for batch, text in remarks.items() for kind in text.split(", ") if kind} == marked


def scattered(batch_size, *processes_ms):
    """Return a row whose processes each have their own batch time."""
    timings = tuple(timing for ms in processes_ms for timing in row(batch_size, ms).timings)
    return replace(row(batch_size, 1.0), timings=timings)


def test_interval_above_the_plot_is_marked_as_cut():
    wild, tame = scattered(1, 1.0, 3.0), scattered(8, 4.0, 4.01)
    record = replace(example(), rows=(wild, tame), edge=None, safe=None)
    (first, *others) = charts.charts([record])

    assert first.words.endswith(" Bands cut at the top of the plot: batch 1, up to 3677 samples/s.")
    assert not any("cut" in one.words for one in others)
    assert "cut at the top of the plot" in Page(page_of([record])).text()
    assert draw.plain(first, draw.LIGHT).axes[0].get_ylim() == (0, first.top)
    assert first.top == 1.25 * max(point.y for point in drawn(first))
    several = replace(record, rows=tuple(scattered(batch, 1.0, 1.0 + batch) for batch in (1, 2, 4)))
    words = charts.charts([several, replace(several, rows=several.rows[:1])])[0].words
    assert "Bands cut at the top of the plot: batch 1, 2, 4, up to " in words


def test_plot_without_cut_intervals_mentions_none():
    for record in (example(), replace(example(), rows=(scattered(8, 4.0, 4.1), scattered(16, 7.0, 7.01)))):
        first = charts.charts([record])[0]

        assert all((point.high or 0.0) <= first.top for point in drawn(first))
        assert "cut" not in first.words


def of_one_batch_each():
    """Return three recipes with one batch size each, the fastest in the middle, and one that failed."""
    modes = {"eager": 5.0, "compile": 2.0, "cudagraph": 4.0}
    records = [
        replace(example(), spec=replace(example().spec, mode=mode, slo_ms=None), rows=(row(8, ms),), notices=())
        for mode, ms in modes.items()
    ]
    failed = Row(batch_size=8, failure=Failure(kind="died", message=""))
    return [*records, replace(example(), spec=replace(example().spec, dtype="bf16", slo_ms=None), rows=(failed,))]


def test_records_of_one_batch_size_are_bars_sorted_by_throughput():
    drawn = charts.charts(of_one_batch_each())

    assert {one.kind for one in drawn} == {"throughput", "latency", "memory", "clock", "power"}
    for one in drawn:
        assert one.names == ("fp16 nchw compile", "fp16 nchw cudagraph", "fp16 nchw eager")
        assert one.title.endswith(" at batch 8")
    (first,) = drawn[0].series
    assert [point.y for point in first.points] == [4000, 2000, 1600]
    assert all(point.low < point.y < point.high for point in first.points)
    assert "fp16 nchw compile: 4000 samples/s" in drawn[0].words
    assert charts.throughput(of_one_batch_each()) == drawn[0]


def test_bars_name_the_records_without_a_timed_row():
    empty = replace(example(), spec=replace(example().spec, dtype="fp32"), rows=())

    for one in charts.charts([*of_one_batch_each(), empty]):
        assert one.note.endswith(" Not drawn: bf16 nchw eager (died), fp32 nchw eager (nothing was timed).")
        assert one.words.endswith(one.note)


@pytest.mark.parametrize("records", [[example()], of_one_batch_each()], ids=["curve", "bars"])
def test_intervals_are_explained_only_if_a_point_has_one(records):
    one_ms = tuple(replace(timing, device_ms=timing.device_ms[:1]) for timing in row(8, 5.0).timings)
    unknown = [replace(one, rows=tuple(replace(row, timings=one_ms) for row in one.rows)) for one in records]

    assert "are 95 % confidence intervals." in charts.throughput(records).note
    assert "95 %" not in charts.throughput(unknown).note
    assert "95 %" not in charts.throughput(unknown).words


def test_bars_of_different_batch_sizes_say_which():
    records = [
        *of_one_batch_each(),
        replace(example(), spec=replace(example().spec, dtype="tf32"), rows=(row(1, 9.0),)),
    ]

    names = charts.throughput(records).names

    assert names[-1] == "tf32 nchw eager, batch 1"
    assert names[0] == "fp16 nchw compile, batch 8"


def test_one_record_and_records_of_several_batch_sizes_are_no_bars():
    assert not charts.are_bars([example()])
    assert not charts.are_bars(of_one_batch_each()[:1])
    assert not charts.are_bars([*of_one_batch_each(), example()])
    assert not charts.are_bars(of_one_batch_each()[-1:] * 2)


@pytest.mark.parametrize("records", [[example()], [example(), long(12)], of_one_batch_each()])
def test_every_point_of_a_plot_has_its_value_in_words(records):
    for one in charts.charts(records):
        read = draw.stops(one)

        assert sorted(id(point) for stop in read for point in stop.points) == sorted(map(id, drawn(one)))
        for stop in read:
            assert all(point.text in stop.text for point in stop.points)
            assert len({point.x for point in stop.points}) == 1


def test_values_of_records_at_shared_batch_size_are_read_together():
    stops = {stop.text.splitlines()[0]: stop for stop in draw.stops(charts.throughput([example(), long(4)]))}

    _, one, other = stops["batch 1"].text.splitlines()
    assert len(stops["batch 1"].points) == 2
    assert "250.0 samples/s" in one
    assert "980.4 samples/s" in other


def test_stops_of_drawing_are_at_the_drawn_points():
    chart = charts.throughput([example()])
    drawing = draw.inline(chart)
    left, top, width, height = drawing.box
    across, down = (float(end) for end in re.search(r'viewBox="0 0 (\S+) (\S+)"', drawing.svg).groups())

    places = [place for _, points in drawing.stops for place in points]

    assert [text.splitlines()[0] for text, _ in drawing.stops] == ["batch 1", "batch 4", "batch 5"]
    for (x, y), point in zip(places, drawn(chart), strict=True):
        assert left < 100 * x / across < left + width
        assert 100 * y / down == pytest.approx(top + height * (1 - point.y / chart.top), abs=0.1)


def test_an_svg_file_follows_the_readers_colours_and_other_images_are_light():
    svg = draw.image(charts.throughput([example()]), "svg").decode()

    style = re.search(r"<style>@media \(prefers-color-scheme: dark\)\{(.*?)\}</style>", svg)
    for name in ("paper", "ink", "quiet", "grid", "series-0"):
        assert f"{draw.LIGHT[name]};" in svg or f'{draw.LIGHT[name]}"' in svg
        assert f'{draw.LIGHT[name]}"]{{fill:{draw.DARK[name]}!important}}' in style[1]
    for said in ("resnet50 fp16 nchw 3x224x224 on NVIDIA Example", "fastest, knee: batch 4, 800.0 samples/s"):
        assert said in svg
    assert "largest: batch 5" in svg


@pytest.mark.parametrize("text", ["".join(HOSTILE), "\x1b[31m\x00\ud800", "<title>\n&"])
def test_an_svg_file_is_xml_whatever_a_record_is_called(text):
    record = replace(named(text), notices=())
    for records in ([record], [record, example()]):
        drawn = ET.fromstring(draw.image(charts.throughput(records), "svg"))

        tags = {element.tag.rpartition("}")[2] for element in drawn.iter()}
        assert not tags & {"script", "image", "a", "foreignObject"}
        assert not any(name.startswith("on") for element in drawn.iter() for name in element.attrib)


def test_legend_of_one_record_names_each_marked_point_once_with_its_value():
    chart = charts.throughput([replace(example(), edge=Edge(largest_batch=5, limited_by="memory"))])
    (legend,) = draw.plain(chart, draw.LIGHT).legends

    assert [text.get_text() for text in legend.get_texts()] == [
        " fastest, knee: batch 4, 800.0 samples/s",
        " largest: batch 5, 500.0 samples/s",
    ]


def test_out_of_memory_trials_without_peak_are_drawn_at_the_limit():
    trials = (
        Trial(batch_size=4, peak_reserved_bytes=2**30),
        Trial(batch_size=8, failure=Failure(kind="out_of_memory", message="")),
        Trial(batch_size=9, failure=Failure(kind="died", message="")),
    )

    of_memory = charts.memory([replace(example(), trials=trials)])
    shown = {one.look: one.points for one in of_memory.series}

    assert [(point.x, point.y) for point in shown["fitted"]] == [(4, 1024)]
    assert [(point.x, point.y) for point in shown["failed"]] == [(8, 24 * 1024)]
    assert of_memory.words.startswith(
        "Peaks of batches that fit go from 2 MiB to 1.0 GiB. A line across is the limit: 24.0"
    )


def test_tradeoff_latency_is_slo_percentile_if_available():
    asked = charts.tradeoff([example()])
    unasked = charts.tradeoff([replace(example(), spec=replace(example().spec, slo_ms=None))])
    unknown = charts.tradeoff([replace(example(), rows=(row(5, 10.0, batches=20),))])

    assert (asked.x.label, [level.value for level in asked.levels]) == ("p99 latency, ms", [10.0])
    assert (unasked.x.label, unasked.levels) == ("p50 latency, ms", ())
    assert (unknown.x.label, unknown.levels) == ("p50 latency, ms", ())


def test_latencies_of_many_batch_sizes_or_records_are_lines():
    assert {one.look for one in charts.latency([example()]).series} == {"boxes"}
    assert {one.look for one in charts.latency([long(300)]).series} == {"line", "outline"}
    assert {one.look for one in charts.latency([example(), long(3)]).series} == {"line", "outline"}


def test_clock_and_power_follow_the_order_of_the_run():
    def timed(*watts):
        (timing,) = row(1, 1.0).timings
        return tuple(replace(timing, health=watt and replace(timing.health, power_w=watt)) for watt in watts)

    rows = (Row(batch_size=1, timings=timed(100.0, 110.0)), Row(batch_size=2, timings=timed(200.0, None, 220.0)))
    record = replace(example(), rows=rows)

    assert [(point.x, point.y) for point in drawn(charts.power([record]))] == [(1, 100), (2, 200), (3, 110), (5, 220)]


def test_records_are_named_by_their_differences():
    one = example()
    other_mode = replace(one, spec=replace(one.spec, mode="compile"), started="later")
    other_model = replace(one, spec=replace(one.spec, model="vit_b_16"))

    assert chart.names_of([one]) == ["resnet50"]
    assert chart.names_of([one, other_mode]) == ["fp16 nchw eager", "fp16 nchw compile"]
    assert chart.names_of([one, other_model]) == ["resnet50", "vit_b_16"]
    assert chart.names_of([one, replace(one, started="later")]) == [one.started, "later"]
    assert len(set(chart.names_of([one, one]))) == 2
    assert all(len(name) < 50 for name in chart.names_of([named("W" * 300), named("W" * 300 + "V")]))


ODD = {
    "nothing measured": replace(example(), rows=(), trials=(), edge=None, safe=None, notices=()),
    "failures only": replace(example(), rows=tuple(one for one in example().rows if one.failure), edge=None),
    "nothing fits": replace(example(), rows=(), edge=Edge(largest_batch=0, limited_by="memory", fails_at=1)),
    "one row": replace(example(), rows=(row(4, 5.0),)),
    "interrupted": replace(example(), finished=None, edge=None, safe=None, rows=(row(1, 4.0),)),
    "no samples": replace(example(), rows=(Row(batch_size=1), Row(batch_size=2, timings=(Timing(),)))),
    "no time at all": replace(example(), rows=(row(1, 0.0), row(2, 0.0))),
    "of the CPU": replace(example(), environment=replace(example().environment, device="cpu", memory_total_bytes=None)),
}


@pytest.mark.parametrize("record", ODD.values(), ids=ODD)
def test_odd_records_give_a_page_and_a_plot(record):
    assert Page(page_of([record])).all("h1")
    assert Page(page_of([record, example()])).all("figure")
    assert draw.image(charts.throughput([record]), "png").startswith(b"\x89PNG")


def test_runs_of_one_recipe_have_no_best_recipe():
    runs = [example(), replace(example(), started="2026-11-21T12:00:00+00:00")]

    assert groups(runs) == ()
    assert page.side_by_side(list(zip("ab", runs, strict=True))).strong == ()


def test_few_models_get_answer_groups_and_many_get_a_table():
    models = [replace(example(), spec=replace(example().spec, model=f"model{number}")) for number in range(4)]

    assert [group.title for group in groups(models[:2])] == [f"model{n} fp16 on NVIDIA Example" for n in (0, 1)]
    assert groups(models) == ()
    assert [
        cell.text for cell in page.side_by_side(list(zip(chart.names_of(models), models, strict=True))).rows[3][:2]
    ] == ["model3", "4"]


def test_a_notice_stands_once_with_the_records_that_it_is_about():
    def noticed(mode, seen, cause="the power limit"):
        notice = Notice(kind="throttled", seen=seen, cause=cause, advice="differs", batch_sizes=(1,))
        bare = {"rows": (), "trials": (), "edge": None, "safe": None}
        return replace(example(), spec=replace(example().spec, mode=mode), caveats=(notice,), **bare)

    records = [noticed("eager", "for 1%"), noticed("compile", "for 9%"), noticed("cudagraph", "for 1%")]

    (notice,) = part(page.document(records), "notices").entries
    (hot,) = part(page.document([*records[:1], noticed("compile", "for 9%", "the heat")]), "notices").entries

    assert notice.cause == "the power limit"
    assert hot.cause == ""
    assert [seen.cause for seen in hot.seen] == ["the power limit", "the heat"]
    assert [(seen.records, seen.text) for seen in notice.seen] == [
        (("fp16 nchw eager", "fp16 nchw cudagraph"), "for 1%"),
        (("fp16 nchw compile",), "for 9%"),
    ]


def test_capabilities_and_devices_of_ranks_are_lists_with_commas():
    can = replace(CPU_CAN, memory_peaks=False)
    others = tuple(RankDevice(device=f"cuda:{rank}", device_name="NVIDIA H200") for rank in (1, 2))
    record = replace(example(), environment=replace(example().environment, can=can, others=others))
    _, (_, environment, _) = page.facts([("", record)], None)
    shown = {label.text: text.text for label, text in environment.rows}

    assert shown["capabilities"] == "memory limit, memory size"
    assert shown["others"] == "device cuda:1, device name NVIDIA H200; device cuda:2, device name NVIDIA H200"


def test_cut_short_run_is_marked_on_the_page():
    assert "the run was cut short" in Page(page_of([ODD["interrupted"]])).text()
    assert "the run was cut short" not in Page(page_of([example()])).text()


@pytest.mark.parametrize("of", [draw.LIGHT, draw.DARK], ids=["light", "dark"])
def test_text_and_lines_stand_out_from_the_paper(of):
    def luminance(colour):
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one, other):
        low, high = sorted((luminance(of[one]), luminance(of[other])))
        return (high + 0.05) / (low + 0.05)

    for paper in ("paper", "shade"):
        assert min(contrast(ink, paper) for ink in ("ink", "quiet", "warning")) >= 4.5
    assert min(contrast(name, "paper") for name in of if name.startswith("series-")) >= 3
    assert set(of) == set(draw.LIGHT)


def test_every_colour_of_a_plot_is_the_pages():
    drawing = draw.inline(charts.memory([example()])).svg

    assert not re.search(r"(fill|stroke): #[0-9a-f]{6}", drawing)
    assert {f"var(--{name})" for name in ("ink", "series-0", "warning")} <= set(
        re.findall(r"var\(--[a-z0-9-]+\)", drawing)
    )


@pytest.mark.parametrize(
    ("low", "high", "base"),
    [(1, 2, 2), (128, 512, 2), (1, 2**31, 2), (2.5, 2.6, 10), (1e-9, 1e15, 10), (3, 4000, 10), (99, 101, 2)],
)
def test_a_logarithmic_axis_has_a_few_labels(low, high, base):
    places = draw.ticks(low, high, base)

    assert 2 <= len(places) <= 9
    assert all(low <= place <= high or math.isclose(place, low) for place in places)


@pytest.mark.parametrize("sizes", [(1,), (1, 2), (99, 101)])
def test_ticks_of_the_batch_axis_are_whole_numbers(sizes):
    rows = tuple(row(size, 5.0) for size in sizes)
    (axes,) = draw.plain(charts.throughput([replace(example(), rows=rows)]), draw.LIGHT).axes

    assert all(place == int(place) > 0 for place in axes.get_xticks())
    assert len(axes.get_xticks()) >= len(sizes)


def test_matplotlib_settings_of_user_do_not_change_the_page(plots_drawn_once):
    import matplotlib as mpl

    before = page_of([example()])
    plots_drawn_once()
    with mpl.rc_context({"axes.facecolor": "red", "font.size": 30, "text.parse_math": True, "svg.fonttype": "path"}):
        assert page_of([example()]) == before
        assert mpl.rcParams["font.size"] == 30


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({}, "of 64.0 GiB"),
        ({"memory_limit_bytes": 24 * 2**30}, "of 24.0 GiB"),
        ({"instances": 2}, "of 32.0 GiB each"),
        ({"instances": 2, "memory_limit_bytes": 24 * 2**30}, "of 12.0 GiB each"),
        ({"phase": "train", "dtype": "fp32", "parallel": "ddp", "gpus": 2}, "of 64.0 GiB each"),
    ],
)
def test_peak_memory_is_set_beside_the_limit_of_each(fields, note):
    one = example()
    environment = replace(one.environment, memory_total_bytes=64 * 2**30)
    (part,) = page.groups([replace(one, spec=replace(one.spec, **fields), environment=environment)])

    assert [tile.note for tile in part.sections[0].tiles if tile.label == "Peak memory"] == [note]
