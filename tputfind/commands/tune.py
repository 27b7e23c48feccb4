"""`tputfind tune`: check the options, race, write and show the result."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tputfind.analysis.race import decode_race
from tputfind.commands.console import Given, command_line, finish, options_of, stop_signals
from tputfind.commands.outputs import csv_of_record, model_sources, read_places
from tputfind.errors import Interrupted
from tputfind.processes.children import Children
from tputfind.record import files
from tputfind.record.identity import Question
from tputfind.report.outputs import check_places, forms
from tputfind.report.progress import StderrConsole, show_progress
from tputfind.report.views import tune as view
from tputfind.runners import tune


def main(given: Given, *, show_traceback: bool) -> int:
    folder = None if given.pop("no_save") else files.path_of("--output", given["output"] or "results")
    del given["output"]
    places, model, goal = read_places(given, folder), given.pop("model"), given.pop("for") or "throughput"
    resumed, before = given.pop("resume"), None
    if resumed is not None:
        begun = files.path_of("--resume", resumed)
        before = decode_race(files.content(begun), str(begun))
        if begun not in map(Path, places.files):
            places = places._replace(files=(*places.files, begun))
    quiet, trust = given.pop("quiet"), given.pop("trust_model_file")
    options = options_of(given, given)
    asked = tune.read_request(model, options, goal, folder, command_line())._replace(before=before)
    plain = asked.plain if before is None else replace(asked.plain, budget_s=before.specs[0].budget_s)
    question = Question((plain,), any_device=asked.devices is not None)
    outputs = check_places(places, model_sources([asked.plain]), json="race", question=question)
    with stop_signals() as ignore_signals:
        with ExitStack() as stack:
            progress = stack.enter_context(show_progress(StderrConsole(quiet=quiet)))

            def start(**place: Any) -> Children:
                return stack.enter_context(Children(trust_model_file=trust, **place))

            race, file, ended_by = tune.measure(asked, start, progress)
            ignore_signals()  # the rest is short and must not be lost to a signal
        document = view.document(race)
        record, path = race.record, None if race.record is None or file is None else file.path
        table = [] if record is None or path is None else [csv_of_record(record, path)]
        outputs.write(forms(document), table)
    problems = [one for one in (ended_by, None if file is None else file.problem, *outputs.problems) if one is not None]
    if race.interrupted:
        saved = [one for one in outputs.saved if one not in [str(output.path) for output, _ in table]]
        again = next((f"--resume {one} goes on" for one in saved if one.endswith(".json")), "")
        said = "the race until then is saved" if saved else "the race was not saved: --save names a file"
        problems = [Interrupted(f"interrupted; {said}", again), *problems]
    saved_records = [] if path is None else [str(path)]
    return finish(document, outputs, problems, saved_records, show_traceback=show_traceback)
