"""`tputfind forecast`: check the options, measure, write and show the forecasts."""

from tputfind.commands.console import Given, command_line, finish, options_of, stop_signals
from tputfind.commands.outputs import model_sources, read_places
from tputfind.errors import BadRequest
from tputfind.processes.children import Children
from tputfind.record.identity import Question
from tputfind.record.spec import read_spec
from tputfind.report.outputs import check_places, forms
from tputfind.report.progress import StderrConsole, show_progress
from tputfind.report.views import forecast as view
from tputfind.session import forecast


def main(given: Given, *, show_traceback: bool) -> int:
    places, model, memory = read_places(given), given.pop("model"), given.pop("memory")
    on_fake, quiet, trust = map(given.pop, ("on_fake", "quiet", "trust_model_file"))
    sizes, wrong = forecast.read_memories(memory or ())
    problems = [wrong] if wrong else []
    try:
        spec = read_spec(model, options_of(given, given))
    except BadRequest as problem:
        problems.append(problem.message)
    if on_fake and given["device"] not in (None, "cpu"):
        problems.append("--on-fake does without a device: leave --device out")
    if problems:
        raise BadRequest("; ".join(problems), "see tputfind forecast --help")
    outputs = check_places(places, model_sources([spec]), json="forecast", question=Question((spec,)))
    with stop_signals() as ignore_signals:
        children = Children(trust_model_file=trust)
        with children, show_progress(StderrConsole(quiet=quiet)) as progress:
            progress.about(spec.model)
            found = forecast.forecast_with(spec, sizes, children, progress, command_line(), on_fake=on_fake)
            ignore_signals()  # the rest is short and must not be lost to a signal
        document = view.document(found)
        outputs.write(forms(document))
    return finish(document, outputs, show_traceback=show_traceback)
