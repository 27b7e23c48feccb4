"""OLD and NEW compared: two records by their figures, two models or recipes by timing them in turn."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from random import Random
from time import monotonic
from typing import Final, NamedTuple

from tputfind import options as values
from tputfind.analysis import compare as verdicts
from tputfind.analysis.compare import TOLERANCE, Comparison, checked_tolerance
from tputfind.errors import BadRequest, NoSuchDevice, OutOfTime, TputfindError
from tputfind.processes.children import OUT_OF_TIME, Children
from tputfind.processes.messages import Inspection
from tputfind.record.identity import has_images
from tputfind.record.record import Record
from tputfind.record.spec import Spec, read_spec
from tputfind.runners.find import add_model_traceback, show_progress
from tputfind.runners.sweep import each_recipe
from tputfind.session import pickling
from tputfind.session.inspect import apply_inspection, inspect, now
from tputfind.session.outcome import no_answer
from tputfind.session.progress import Progress
from tputfind.session.turns import Duel, Variant, duels_to_continue, multiple_near
from tputfind.step import Step

BUDGET_S: Final = 60.0
BATCH_SIZE: Final = 32
NOT_IN_TURN: Final = (
    *("max_batch", "max_latency", "slo", "percentile", "headroom", "soak", "search", "batches", "warmup", "processes"),
    *("max_seconds", "max_noise", "thorough", "strict", "effective_batch"),
)
"""Options that have no effect on rounds in turn."""
Model = str | Callable[..., object] | Step


class Asked(NamedTuple):
    """A request to compare: the specs of OLD and NEW, with their batch sizes, and when a verdict is certain."""

    specs: tuple[Spec, Spec]
    tolerance: float = TOLERANCE
    fail_slower: float | None = None

    @property
    def budget_s(self) -> float:
        """Maximum seconds until the verdict."""
        return self.specs[0].budget_s or BUDGET_S


class Compared(NamedTuple):
    """A comparison, and what ended its rounds early: the user, or a problem."""

    comparison: Comparison
    interrupted: bool = False
    problem: TputfindError | None = None


def read_request(
    models: Sequence[str], options: dict[str, object], tolerance: float, fail_slower: float | None
) -> Asked:
    """Return the request: two models in one recipe, or one model in two; BadRequest if an option is wrong."""
    if unused := [name for name in NOT_IN_TURN if options.get(name) not in (None, False)]:
        raise BadRequest(f"{', '.join(unused)}: two models are timed in turn, and these have no effect")
    specs = [spec for model in models for spec in dict.fromkeys(read_spec(model, one) for one in each_recipe(options))]
    if len(specs) != 2:
        raise BadRequest(
            f"--run compares two, and {len(specs)} are asked for",
            "name OLD and NEW, or one model and two recipes, such as --mode eager,compile",
        )
    if any(spec.gpus is not None or spec.parallel is not None for spec in specs):
        raise BadRequest("--run compares on one device: leave --gpus and --parallel out")
    return Asked((specs[0], specs[1]), checked_tolerance(tolerance), fail_slower)


def compare(
    old: Record | Model,
    new: Record | Model,
    *,
    tolerance: float = TOLERANCE,
    force: bool = False,
    fail_slower: float | None = None,
    inputs: Callable[[int], object] | None = None,
    progress: bool | Progress | None = None,
    trust_model_file: bool = False,
    **options: object,
) -> Comparison:
    """Compare OLD and NEW: two records, or two models that are timed in turn.

    For two models, one process of each is kept ready, and their short windows alternate: a disturbance of both cancels.
    The comparison ends as soon as the verdict is certain, and after ``budget`` (60 s) at the latest. See
    ``Turns.interval``.

    Args:
        old: the baseline: a record, or any model that ``find`` takes.
        new: the candidate, of the same kind.
        tolerance: the fraction up to which a difference does not count: 0.01 is 1 %.
        force: compare records of different configurations too; the comparison then names the differences.
        fail_slower: for two models, stop as soon as it is certain whether NEW is slower by this fraction.
        inputs: the function that makes the inputs of live modules, as for ``find``.
        progress: whether to show progress on stderr; or a listener that receives it instead.
        trust_model_file: load files of models even if those can run code.
        options: for two models, as for ``find``, such as ``dtype="fp16"``, ``batch_sizes=[1, 32]``, ``budget="2min"``.

    Returns:
        The comparison: ``verdict``, and a row for each batch size with the ratio NEW over OLD and its interval.

    Raises:
        BadRequest: the two cannot be compared, or an option is wrong.
        TputfindError: a model or the device does not allow it.
    """
    if isinstance(old, Record) or isinstance(new, Record):
        if options or inputs is not None or fail_slower is not None:
            given = ", ".join([*options, *(["inputs"] if inputs else []), *(["fail_slower"] if fail_slower else [])])
            raise BadRequest(f"{given}: these are for two models, and records are given")
        return verdicts.compare(old, new, tolerance=tolerance, force=force)  # type: ignore[arg-type]  # it checks them
    if force:
        raise BadRequest("force is for records: two models are compared as they are")
    models = (old, new)
    names = [pickling.name_of(model) for model in models]
    share = None if fail_slower is None else values.share(fail_slower)
    asked = read_request(names, options, tolerance, share)
    with show_progress(progress) as told, add_model_traceback(), ExitStack() as stack:
        files = [stack.enter_context(pickling.pickle_model(model, inputs)) for model in models]
        children = stack.enter_context(Children(trust_model_file=trust_model_file))
        found = measure(asked, (children.copy(files[0]), children.copy(files[1])), told)
    if found.interrupted:
        raise KeyboardInterrupt
    if found.problem is not None:
        warnings.warn(f"the rounds ended early: {found.problem}", stacklevel=2)
    return found.comparison


def measure(asked: Asked, children: tuple[Children, Children], progress: Progress) -> Compared:
    """Time two variants in turn until each verdict is certain, the budget is over, or the user interrupts.

    OutOfTime or KeyboardInterrupt before both were timed once; TputfindError if no batch size runs in both.
    """
    begin_s, started = monotonic(), now()
    for each in children:
        each.end_within(asked.budget_s)
    progress.about("OLD and NEW")
    progress.doing("looking at both and the device", None)
    for each in children:
        each.connect()  # one after the other: one server forks both
    inspections = inspect_at_once(asked.specs, children)
    old, new = map(apply_inspection, asked.specs, inspections)
    can = inspections[0].environment.can
    variants = [Variant(spec, 1, each, can) for spec, each in zip((old, new), children, strict=True)]
    sizes = old.batch_sizes or (_default_batch_size(old, new),)
    rows = [Duel(*(one._replace(batch_size=size) for one in variants)) for size in sizes]
    ended: BaseException | None = None
    try:
        _take_rounds(rows, asked, begin_s + asked.budget_s, progress)
    except (TputfindError, KeyboardInterrupt) as end:
        ended = end
        if not any(row.tried.turns.rounds or row.tried.failure for row in rows):
            raise
    tried = [row.tried for row in rows]
    if not any(one.turns.rounds for one in tried):
        for row, (turns, failed, failure) in zip(rows, tried, strict=True):
            if failure is not None:
                failing = row.variants[failed or 0].spec
                raise row.refusal or no_answer(failing, turns.batch_sizes[0], failure, smallest=False)
        raise OutOfTime(*OUT_OF_TIME)
    comparison = verdicts.compare_turns(
        (rows[0].variants[0].spec, rows[0].variants[1].spec),
        inspections[0].environment.device_name,
        started,
        tried,
        tolerance=asked.tolerance,
        seconds=monotonic() - begin_s,
        differs=tuple(_differing(*inspections)),
        images=any(has_images(one.input_shape) for one in inspections),
    )
    problem = ended if isinstance(ended, TputfindError) and not isinstance(ended, OutOfTime) else None
    return Compared(comparison, isinstance(ended, KeyboardInterrupt), problem)


def inspect_at_once(specs: Sequence[Spec], children: Sequence[Children]) -> list[Inspection]:
    """Inspect specs in parallel, since each imports packages for seconds; return their inspections."""
    with ThreadPoolExecutor(len(specs)) as pool:
        try:
            return list(pool.map(inspect, specs, children))
        except NoSuchDevice:  # it may take one process at a time
            pass
        except BaseException:
            for each in children:
                each.interrupt()
            raise
    return list(map(inspect, specs, children))


def _take_rounds(rows: Sequence[Duel], asked: Asked, until_s: float, progress: Progress) -> None:
    """Take rounds of each row until its verdict is certain, or until there is no time for another."""
    random = Random(asked.specs[0].seed)  # noqa: S311  # the order of windows is no secret
    judged = partial(verdicts.judged_in_turn, tolerance=asked.tolerance, comparisons=len(rows))
    for row in duels_to_continue(rows, lambda tried: verdicts.is_certain(judged(tried), asked.fail_slower), until_s):
        number = len(row.tried.turns.rounds) + 1
        progress.doing(f"batch {row.batch_size}: both in turn, round {number}", until_s - monotonic())
        row.take_round(random)
        if (ratio := row.tried.turns.ratio(1, 0)) is not None:
            progress.did(f"batch {row.batch_size}, round {number}: NEW is {ratio:.3f} times as fast so far")


def _default_batch_size(old: Spec, new: Spec) -> int:
    """Return the batch size to compare at: a multiple of both granularities, at most 32 if there is one."""
    return multiple_near(BATCH_SIZE, (old, new))


def _differing(old: Inspection, new: Inspection) -> Iterator[str]:
    pairs = [("parameters", old.parameters, new.parameters), ("input", old.input_shape, new.input_shape)]
    for name, before, after in pairs:
        if before != after and not {None, ""} & {before, after}:  # those of a step are unknown
            yield f"{name} {before} and {after}"
    seen = [{notice.seen for notice in each.caveats} for each in (old, new)]
    for side, own, other in (("OLD", seen[0], seen[1]), ("NEW", seen[1], seen[0])):
        yield from (f"in {side}, {text}" for text in sorted(own - other))
