"""`tputfind models`: list the models that can be named."""

import sys

from tputfind.commands.console import Given, print_columns
from tputfind.errors import BadRequest
from tputfind.options import did_you_mean
from tputfind.processes.children import Children
from tputfind.processes.messages import NamedModel
from tputfind.session import catalogue
from tputfind.units import echo


def main(given: Given, *, show_traceback: bool) -> int:  # noqa: ARG001  # as every command is called
    pattern = given["pattern"]
    listed = catalogue.stored_models(pattern)
    if listed is None:
        with Children() as children:
            listed = catalogue.ask_zoo(pattern, children)
    if not listed:
        near = did_you_mean(pattern, [model.name for model in catalogue.stored_models() or ()])
        raise BadRequest(f"no model's name matches {echo(pattern)}{near}", "tputfind models lists all of them")
    print_columns(("model", "input", "parameters", "family"), [_cells(model) for model in listed])
    for line in catalogue.elsewhere() if pattern == "*" else ():
        sys.stdout.write(f"{line}\n")
    return 0


def _cells(model: NamedModel) -> tuple[str, ...]:
    parameters = "" if model.parameters is None else f"{model.parameters / 1e6:.1f} M"
    return model.name, model.input_shape, parameters, model.family
