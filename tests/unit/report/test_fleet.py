"""Devices side by side in reports: on a terminal, in Markdown, on a page, in the CSV."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console
from support.records import HEALTH, example, row
from support.shown import csv_of, markdown_of, report_of

from tputfind.analysis.compare import compare
from tputfind.errors import BadRecord, BadRequest
from tputfind.record.identity import placed_command
from tputfind.record.record import Timing
from tputfind.report import text
from tputfind.report.document import Document
from tputfind.report.progress import show_progress
from tputfind.report.views import fleet, page
from tputfind.session.resume import can_go_on, check_same


def timed(batch_size, pace_ms, **fields):
    timings = tuple(Timing(device_ms=(pace_ms * skew,) * 20, health=HEALTH, **fields) for skew in (1.0, 1.001, 0.999))
    return replace(row(batch_size, pace_ms), timings=timings)


def of_device(number, pace_ms, load="solo"):
    record = example()
    busy, name = (2, f"cuda:{number}") if load == "all_busy" else (1, f"cuda:{number}")
    environment = replace(record.environment, device=name, device_uuid=f"GPU-{number}")
    spec = replace(record.spec, device=name, load=load, busy_devices=busy)
    share = 1.0 if load == "all_busy" else None
    rows = (timed(8, pace_ms, all_busy_share=share),)
    return replace(record, spec=spec, environment=environment, rows=rows, edge=None, notices=())


ALONE = [of_device(0, 10.0), of_device(1, 12.0)]
BUSY = [of_device(0, 10.0, "all_busy"), of_device(1, 15.0, "all_busy")]


def printed(*records, width=120):
    return " ".join(report_of(records, width).split())


def test_a_table_by_device_names_the_slow_one_and_by_how_much():
    (part,) = fleet.documents(ALONE)
    devices, causes = part.sections

    assert part.title == "resnet50 fp16 nchw eager 3x224x224, batch 8: each device against the median of the others"
    heads = [column.heading for column in devices.columns]
    by_name = {cells[0].text: dict(zip(heads, [cell.text for cell in cells], strict=True)) for cells in devices.rows}
    assert by_name["cuda:1"]["verdict"] == "slower by 17 %"
    assert by_name["cuda:0"]["verdict"] == "faster by 20 %"
    assert by_name["cuda:0"]["SM MHz"] == "1700"
    assert ("cuda:1", "batch 8: slower by 17 %: no cause was seen") in causes.lines


def test_report_shows_devices_side_by_side_and_marks_busy_ones():
    every = [*ALONE, *BUSY]
    opening = page.document(every).sections[0].sections

    for shown in (printed(*every), printed(*every, width=80), " ".join(markdown_of(every).decode().split())):
        assert "each device against the median of the others" in shown
        assert "2 devices busy at once, each against itself alone" in shown
        assert "slower by 20 %" in shown
        assert "all 2 devices busy" in shown
    assert [one.title for one in opening if isinstance(one, Document) and not one.folded] == [
        part.title for part in fleet.documents(every)
    ]
    assert text.record_names(every) == ["cuda:0, solo", "cuda:1, solo", "cuda:0, all busy", "cuda:1, all busy"]
    lines = csv_of(every).decode().splitlines()
    assert [line.split(",")[-12:-8] for line in lines[1:]] == [
        ["solo", "1", "", ""],
        ["solo", "1", "", ""],
        ["all busy", "2", "1", ""],
        ["all busy", "2", "1", ""],
    ]


NODES = ("10.0.0.1", "10.0.0.2")


@pytest.mark.parametrize(
    ("uuids", "nodes", "names"),
    [
        (("GPU-aaaaaaaa-1", "GPU-bbbbbbbb-2"), (None, None), ("GPU-aaaaaaaa", "GPU-bbbbbbbb")),
        (("GPU-aaaaaaaa-1", "GPU-bbbbbbbb-2"), NODES, NODES),
        ((None, None), NODES, NODES),
    ],
)
def test_same_device_number_is_distinguished_by_its_node_or_uuid(uuids, nodes, names):
    record = of_device(0, 10.0)
    found = [
        replace(
            record,
            environment=replace(record.environment, device_uuid=uuid),
            command=placed_command("tputfind net", None, node) if node else record.command,
        )
        for uuid, node in zip(uuids, nodes, strict=True)
    ]

    rows = fleet.documents(found)[0].sections[0].rows
    assert [cells[0].text for cells in rows] == [f"cuda:0 {name}" for name in names]


def test_one_device_has_no_such_table():
    assert fleet.documents([example()]) == []
    assert "against" not in printed(example())


def test_recipes_on_several_devices_have_a_table_for_each_device():
    bf16 = [replace(one, spec=replace(one.spec, dtype="bf16")) for one in ALONE]

    assert [len(group) for group in text.models_in_recipes([*ALONE, *bf16])] == [2, 2]
    assert len(text.models_in_recipes([ALONE[0], bf16[1]])) == 1


def test_a_device_alone_and_a_busy_one_are_not_compared_unless_forced():
    with pytest.raises(BadRequest, match="one is of a device alone, the other of all devices busy"):
        compare(ALONE[0], BUSY[0])
    assert compare(ALONE[0], BUSY[0], force=True).unlike
    assert compare(BUSY[0], BUSY[0]).verdict == "same"


def test_all_busy_record_of_one_device_cannot_be_resumed_alone():
    cut = replace(BUSY[0], finished=None)

    assert not can_go_on(cut)
    assert can_go_on(replace(ALONE[0], finished=None))
    with pytest.raises(BadRecord, match="2 devices that were busy together"):
        check_same(cut, cut.spec, None)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_names_the_device_of_each_line(is_terminal):
    paper = io.StringIO()
    console = Console(file=paper, force_terminal=is_terminal, width=100, height=20, color_system=None)
    with show_progress(console) as progress:
        for name in ("cuda:0", "cuda:1"):
            device = progress.of(name)
            device.about("resnet50")
            device.doing("timing batch 8", 12.0)
        progress.of("cuda:0").did("batch 8: 800.0 samples/s")
        progress.of("cuda:0").measured(example())
        progress.about("")
        progress.did("cuda:1 fails and is taken out: gone")
        shown = paper.getvalue()

    assert "cuda:1 resnet50: timing batch 8, about 12 s left" in shown
    assert "cuda:0 resnet50: batch 8: 800.0 samples/s" in shown
    assert "cuda:1 fails and is taken out: gone" in shown
