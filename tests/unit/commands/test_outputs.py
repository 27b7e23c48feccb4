"""Files that a command may write: never its inputs, and of other files only reports of this tool."""

import errno
import os
import re
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.folders import record_path
from support.records import FORECASTS, example

import tputfind
from tputfind.analysis.compare import compare
from tputfind.analysis.race import Contender, Race
from tputfind.commands.outputs import model_sources
from tputfind.errors import BadRequest, TputfindError
from tputfind.readers.results import load
from tputfind.record import files
from tputfind.record.files import load_records
from tputfind.record.identity import Question, question_of, unlike_questions
from tputfind.record.record import Records
from tputfind.record.spec import Spec, read_spec
from tputfind.report.outputs import ENDINGS, NAMES, Kind, Places, Source, check_places, forms, is_report, table_of
from tputfind.report.results import document_of


def race():
    plain, other = Spec(model="resnet18"), Spec(model="resnet18", layout="nhwc")
    contenders = Contender(spec=plain, outcome="first"), Contender(spec=other, outcome="untried", reason="takes 9 s")
    fields = {"goal": "throughput", "batch_size": 8, "device_name": "a CPU", "started": "", "budget_s": 60.0}
    return Race(**fields, seconds=59.0, contenders=contenders, winner=plain, record=example())


@cache  # made at its first use: a collection of the tests would make it too
def reports() -> dict[str, tuple[Kind, bytes]]:
    """Return each form of each result by a file name, with its kind."""
    results = {
        "record": example(),
        "records": Records([example()] * 2),
        "clocks": load(record_path("nvidia-h200/clocks/resnet50-fp16-batch-1.json")),
        "forecast": FORECASTS,
        "comparison": compare(example(), example(), force=True),
        "race": race(),
        "plan": tputfind.size(example(), rate=50, slo="1s"),
        "plans": tputfind.size(example(), example(), rate=50, slo="1s"),
    }
    made = {
        f"{name}.{ending}": (result.KIND if ending == "json" else ending, make())
        for name, result in results.items()
        for ending, make in forms(document_of(result)).items()
    }
    old_clocks = record_path("nvidia-h200/clocks/mobilenet_v3_large-fp32.json").read_bytes()
    return made | {"old-clocks.json": ("clocks", old_clocks)}


@pytest.fixture(scope="module", autouse=True)
def made_reports():
    """Make the reports before Hypothesis measures how long it takes to draw their names."""
    reports()


OTHERS = {
    "model.py": b"from torch import nn\n",
    "notes.md": b"# batch | samples/s\n\n| batch | samples/s | \xc2\xb1 % |\n",
    "prices.csv": b"device,price_per_hour,currency,source,date\n",
    "table.csv": b"model,batch_size\nresnet50,8\n",
    "config.json": b'{"schema": 1, "model": "x"}',
    "plot.png": b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR",
    "page.html": b"<!DOCTYPE html>\n<html></html>",
    "plot.svg": b"<?xml version='1.0'?><svg><!-- tputfind --></svg>",
    "weights.pt": bytes(range(256)) * 300,
}


def test_each_report_is_recognized_as_its_own_kind_only(tmp_path):
    for name, (kind, content) in reports().items():
        path = tmp_path / name
        path.write_bytes(content)

        assert [each for each in NAMES if is_report(path, each)] == [kind], name
    assert {kind for kind, _ in reports().values()} == set(NAMES)


def test_foreign_file_is_no_report(tmp_path):
    for name, content in OTHERS.items():
        (tmp_path / name).write_bytes(content)

        assert not [kind for kind in NAMES if is_report(tmp_path / name, kind)], name


def ending_of(place: str) -> str:
    return place.rpartition(".")[2]


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@st.composite
def layouts(draw):
    """Draw files, links to them, the files that are read, and the outputs, with or without --overwrite."""
    names = sorted(OTHERS) + sorted(reports())
    files = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    links = draw(st.dictionaries(st.sampled_from(["one", "two"]), st.tuples(st.sampled_from(files), st.booleans())))
    places = [*files, *links, "new.csv", "./new.csv", "empty.md"]
    wanted = draw(st.lists(st.sampled_from(places), min_size=1, max_size=3))
    read = draw(st.sets(st.sampled_from([*files, *links]), max_size=2))
    return files, links, wanted, read, draw(st.booleans())


@settings(max_examples=300)
@given(layouts())
def test_sources_never_change_and_foreign_files_only_with_overwrite(layout):
    files, links, wanted, read, overwrite = layout
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "empty.md").touch()
        for file in files:
            (folder / file).write_bytes(OTHERS[file] if file in OTHERS else reports()[file][1])
        for link, (target, hard) in links.items():
            if hard:
                (folder / link).hardlink_to(folder / target)
            else:
                (folder / link).symlink_to(target)
        before = content_of(folder)
        places = Places(None, tuple(f"{folder}/{place}" for place in wanted), overwrite)
        sources = [Source("read", folder / one) for one in read]
        try:
            outputs = check_places(places, sources, question=question_of(example()))
        except BadRequest:
            assert content_of(folder) == before
            return
        outputs.write({ending: lambda ending=ending: ending.encode() for ending in ENDINGS})

        after = content_of(folder)
        assert not outputs.problems
        for place in wanted:
            assert after[Path(place).name] == ending_of(place).encode()
        written = {os.path.realpath(folder / place): ending_of(place) for place in wanted}
        for file, content in before.items():
            if file in read or os.path.realpath(folder / file) not in written:
                assert after[file] == content
            elif not overwrite and content:
                ending = written[os.path.realpath(folder / file)]
                path = folder / "copy"
                path.write_bytes(content)
                assert is_report(path, "record" if ending == "json" else ending)
                held = load_records(path) if ending == "json" else []
                assert not any(unlike_questions(question_of(one), question_of(example())) for one in held)


def spec_with(**fields):
    return replace(example().spec, **fields)


@pytest.mark.parametrize(
    ("question", "differing"),
    [
        (question_of(example()), None),
        (Question((example().spec,)), None),
        (Question((spec_with(trial_timeout_s=60.0, strict=True),)), None),
        (Question((spec_with(grad_mode="enabled"),)), None),
        (Question((spec_with(model="vgg11"),)), r"model \(resnet50 there, vgg11 here\)"),
        (Question((spec_with(dtype="bf16", mode="compile"),)), r"dtype \(.*\); mode \(eager there, compile here\)"),
        (Question((spec_with(batches=7),)), "batches"),
        (question_of(example())._replace(device_name="NVIDIA A10"), r"device \(.* there, NVIDIA A10 here\)"),
        (Question(()), r"runs \(1 there, 0 here\)"),
    ],
)
def test_record_is_replaced_by_one_of_the_same_question_alone(tmp_path, question, differing):
    path = tmp_path / "a.json"
    example().save(path)
    places = Places(None, (path,))

    if differing is None:
        new = replace(example(), wall_s=1.0)
        check_places(places, question=question).write({"json": new.to_json})
        assert files.load_record(path) == new
        return
    with pytest.raises(BadRequest, match=rf"--save .*a.json holds another measurement: {differing}") as refused:
        check_places(places, question=question)
    assert refused.value.hint.endswith("or give --overwrite")
    assert files.load_record(path) == example()
    check_places(places._replace(overwrite=True), question=question)


def test_measurement_that_cannot_be_read_is_not_replaced(tmp_path):
    (tmp_path / "a.json").write_bytes(example().to_json()[:-100])

    with pytest.raises(BadRequest, match=r"holds another measurement: .*a.json is not a tputfind record"):
        check_places(Places(None, (tmp_path / "a.json",)), question=question_of(example()))


def test_record_appearing_during_run_is_kept_if_it_answers_another_question(tmp_path):
    outputs = check_places(Places(None, (tmp_path / "a.json",)), question=Question((spec_with(model="vgg11"),)))
    example().save(tmp_path / "a.json")

    outputs.write({"json": replace(example(), wall_s=1.0).to_json})

    assert files.load_record(tmp_path / "a.json") == example()
    assert "holds another measurement" in outputs.problems[0].message


def test_measurement_of_another_device_is_saved_beside_the_first(tmp_path):
    example().save(tmp_path / "a.json")
    outputs = check_places(Places(None, (tmp_path / "a.json",)), question=Question((example().spec,)))
    other = replace(example(), environment=replace(example().environment, device_name="NVIDIA A10"))

    outputs.write({"json": other.to_json})

    assert files.load_record(tmp_path / "a.json") == example()
    assert re.search(r"device \(.* there, NVIDIA A10 here\); this one is in ", outputs.problems[0].message)
    assert [files.load_record(path) for path in outputs.saved] == [other]


def test_comparison_of_models_is_replaced_only_by_one_of_the_same_models(tmp_path):
    of_records = compare(example(), example(), force=True)
    in_turn = replace(of_records, variants=(spec_with(model="a"), spec_with(model="b")))
    other = replace(of_records, variants=(spec_with(model="a"), spec_with(model="c")))
    of_records.save(tmp_path / "a.json")  # it can be made again, and is replaced by anything
    in_turn.save(tmp_path / "a.json")
    in_turn.save(tmp_path / "a.json")

    with pytest.raises(BadRequest, match=r"save .* holds another measurement: model \(b there, c here\)"):
        other.save(tmp_path / "a.json")
    with pytest.raises(BadRequest, match=r"save .* holds another measurement: runs \(2 there, 0 here\)"):
        of_records.save(tmp_path / "a.json")
    of_records.save(tmp_path / "b.json")
    replace(of_records, model="another").save(tmp_path / "b.json")


@pytest.mark.parametrize("name", ["resnet50-fp16-batch-1.json", "mobilenet_v3_large-resnet50-fp32.json"])
def test_clocks_file_is_replaced_only_by_the_same_models(name, tmp_path):
    found = files.load(record_path(f"nvidia-h200/clocks/{name}"))
    found.save(tmp_path / "a.json")
    found.save(tmp_path / "a.json")
    other = files.load(record_path("nvidia-h200/clocks/mobilenet_v3_large-fp32.json"))

    with pytest.raises(BadRequest, match=r"save .* holds another measurement: (model|runs)"):
        other.save(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("ds2.py:Plain", {}),
        ("saved.pt2", {}),
        ("resnet18", {"weights": "w.pth"}),
        ("timm:vit", {"weights": "w.pth"}),
        ("hf:config.json", {}),
        ("hf:llama", {}),
    ],
)
def test_model_files_are_sources_and_never_written_over(tmp_path, monkeypatch, model, options):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama").mkdir()
    names = ("ds2.py", "saved.pt2", "w.pth", "config.json", "llama/model.safetensors")
    for name in names:
        (tmp_path / name).write_bytes(b"content")

    read = {source.path.resolve() for source in model_sources([read_spec(model, options)])}

    own = {"ds2.py:Plain": 0, "saved.pt2": 1, "hf:config.json": 3, "hf:llama": 4}
    place = tmp_path / names[own.get(model, 2)]
    assert place.resolve() in read
    (tmp_path / "link.csv").symlink_to(place)
    with pytest.raises(BadRequest, match="would be written over"):
        check_places(Places(None, ("link.csv",), overwrite=True), model_sources([read_spec(model, options)]))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", "--save is empty"),
        ("table", "the ending says what is written: .json, .csv, .md, .html, .svg or .png"),
        ("table.pdf", "the ending says what is written: .json, .csv, .md, .html, .svg or .png"),
        (".csv", "the ending says what is written"),
        ("/dev/stdout", "the ending says what is written"),
        ("folder.csv/", "it is a folder"),
        ("a\nb", "cannot be shown"),
        ("a\0b", "cannot be shown"),
        ("a\x1b[31mb", "cannot be shown"),
        ("x" * 300 + ".csv", "File name too long"),
        ("loop.csv", "Too many levels of symbolic links"),
        ("file/table.csv", "Not a directory"),
        ("folder.csv", "it is a folder"),
        ("to_folder.csv", "it is a folder"),
        ("/proc/none/table.csv", "cannot write in /proc/none"),
    ],
)
def test_unwritable_output_is_refused_in_one_line(tmp_path, monkeypatch, place, message):
    monkeypatch.chdir(tmp_path)
    Path("loop.csv").symlink_to("loop.csv")
    Path("file").write_text("mine")
    Path("folder.csv").mkdir()
    Path("to_folder.csv").symlink_to("folder.csv")

    with pytest.raises(BadRequest) as refused:
        check_places(Places(None, (place,)))

    assert message in refused.value.message
    assert "\n" not in refused.value.message
    assert "\x1b" not in refused.value.message


def test_outputs_to_dangling_link_long_name_and_device_are_written(tmp_path):
    (tmp_path / "link.csv").symlink_to("real.csv")
    (tmp_path / "null.json").symlink_to("/dev/null")
    long = tmp_path / ("x" * 252 + ".md")
    outputs = check_places(Places(None, (tmp_path / "link.csv", long, tmp_path / "null.json")))

    outputs.write({"csv": lambda: b"a", "md": lambda: b"b", "json": lambda: b"c"})

    assert not outputs.problems
    assert ((tmp_path / "real.csv").read_bytes(), long.read_bytes()) == (b"a", b"b")
    assert len(list(tmp_path.iterdir())) == 4


def test_output_inside_another_output_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="it is a folder"):
        check_places(Places(None, (f"{tmp_path}/a.csv", f"{tmp_path}/a.csv/b.md")))


def test_failing_output_leaves_other_outputs_intact(tmp_path):
    def fails() -> bytes:
        raise TypeError("of a library's")

    def refuses() -> bytes:
        raise BadRequest("not this")

    (tmp_path / "full.html").symlink_to("/dev/full")
    names = ("a.csv", "b.json", "full.html", "c.md", "d.svg")
    outputs = check_places(Places(None, tuple(f"{tmp_path}/{name}" for name in names)))
    outputs.write({"csv": fails, "json": refuses, "html": lambda: b"d", "md": lambda: b"c"})

    assert outputs.saved == [f"{tmp_path}/c.md"]
    assert {path.name for path in tmp_path.iterdir()} == {"c.md", "full.html"}
    defect, refusal, full, undrawn = outputs.problems
    assert undrawn.message == f"--save {tmp_path}/d.svg: this result has no plot"
    assert (defect.exit_code, refusal.message) == (1, "not this")
    assert isinstance(defect.__cause__, TypeError)
    assert os.strerror(errno.ENOSPC) in full.message


def test_a_file_that_comes_while_the_run_goes_on_is_kept(tmp_path):
    place = tmp_path / "table.csv"
    outputs = check_places(Places(None, (place,)))
    place.write_text("somebody's work")

    outputs.write({"csv": lambda: b"model"})

    assert place.read_text() == "somebody's work"
    assert isinstance(outputs.problems[0], TputfindError)


def test_the_record_of_the_run_itself_is_not_replaced_by_another_output(tmp_path):
    record = tmp_path / "resnet50.json"
    outputs = check_places(Places(None, (tmp_path / "link.md", tmp_path / "link.json"), overwrite=True))
    record.write_bytes(b"record")
    (tmp_path / "link.md").symlink_to(record)
    (tmp_path / "link.json").symlink_to(record)
    outputs.protect([Source("the record of this run", record)])

    outputs.write({"md": lambda: b"| batch |", "json": lambda: b"record"})

    assert record.read_bytes() == b"record"
    assert outputs.saved == [str(tmp_path / "link.json")]  # which already holds it
    assert len(outputs.problems) == 1


def test_csv_next_to_a_record_is_replaced_only_if_written_by_tputfind(tmp_path):
    record, beside = tmp_path / "cut.json", tmp_path / "cut.csv"
    for content, refused in ((b"my,own\n1,2\n", True), (reports()["record.csv"][1], False), (b"", False)):
        beside.write_bytes(content)
        if refused:
            with pytest.raises(BadRequest, match=r"the record's CSV .* not a CSV of tputfind's"):
                check_places(Places(None), table=table_of(record))
        else:
            check_places(Places(None), table=table_of(record))
    check_places(Places(None, (beside,)), table=table_of(record))
    (tmp_path / "link.md").symlink_to(beside)
    with pytest.raises(BadRequest, match="same file"):
        check_places(Places(None, (tmp_path / "link.md",)), table=table_of(record))
