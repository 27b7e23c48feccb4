"""The commands that an interrupted run shows to go on with."""

from pathlib import Path

from msgspec.structs import replace
from support.records import example

from tputfind.commands import run
from tputfind.commands.run import Request, _interruption
from tputfind.record.files import RecordFile
from tputfind.record.identity import Question
from tputfind.report.outputs import Outputs
from tputfind.runners.cluster import Cluster
from tputfind.runners.sweep import Job
from tputfind.session.run import Measured

RECORD = replace(example(), finished=None)


def hint_of(**fields):
    request = Request(Job([RECORD.spec], Path("my fleet"), "tputfind"), None, **fields)
    kept = [Measured(RECORD, RecordFile.at(Path("fleet/net.json")))]
    return _interruption(request, kept, ["fleet/net.json"], []).hint


def test_command_to_resume_trusts_model_files_if_the_run_did():
    assert hint_of(trust_model_file=True) == "go on with: tputfind --resume fleet/net.json --trust-model-file"
    assert hint_of() == "go on with: tputfind --resume fleet/net.json"


def test_command_to_resume_on_a_cluster_leaves_the_output_out():
    hint = hint_of(cluster=Cluster("auto"))

    assert hint == "go on with the same command, and --resume 'my fleet' in place of --output"


def test_file_of_save_is_resumed_if_there_is_no_other_record():
    request = Request(Job([RECORD.spec], None, "tputfind"), None)
    kept = [Measured(RECORD, RecordFile.at(None))]

    saved = _interruption(request, kept, ["net.csv", "net.json"], [])
    assert (saved.message, saved.hint) == (
        "interrupted; what was measured until then is saved",
        "go on with: tputfind --resume net.json",
    )
    unsaved = _interruption(request, kept, [], [])
    assert (unsaved.message, unsaved.hint) == ("interrupted; nothing was saved", "")


def test_model_that_had_just_begun_counts_as_not_begun(monkeypatch, capsys):
    finished = Measured(replace(example(), finished="2026-01-01T00:00:00+00:00"), RecordFile.at(None))
    spec = replace(RECORD.spec, model="vit_b_16")
    begun = Measured(replace(RECORD, spec=spec, trials=(), rows=()), RecordFile.at(None), KeyboardInterrupt())
    monkeypatch.setattr(run, "_measure", lambda _: iter([finished, begun]))
    specs = [finished.record.spec, spec, replace(spec, model="vgg16")]

    status = run.do(
        Request(Job(specs, None, "tputfind"), Outputs([], [], Question(), overwrite=False)), show_traceback=False
    )

    assert status == 130
    assert "not begun: vit_b_16, vgg16" in capsys.readouterr().err
