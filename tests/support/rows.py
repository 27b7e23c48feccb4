"""Times batch sizes in a child process."""

from collections.abc import Iterator

from tputfind.processes.children import Children
from tputfind.processes.messages import TimeBatches, Timed
from tputfind.record.record import Row
from tputfind.record.spec import Spec
from tputfind.session import stopping


def time_rows(children: Children, spec: Spec, *batch_sizes: int, timeout_s: float | None = None) -> Iterator[Row]:
    """Yield the rows as the first process of each row times them."""
    question = TimeBatches(spec, stopping.process_plan(spec, 0), batch_sizes)
    for answer in children.ask(question, Timed, timeout_s):
        if answer.row is not None:
            yield answer.row
