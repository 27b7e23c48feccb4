"""The best recipe of a model, by racing: each variant meets the leader in turn, and the winner is measured in full."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import chain
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final, NamedTuple, cast

import msgspec

from tputfind.analysis.answers import too_late
from tputfind.analysis.race import Contender, Levels, Race, batch_of, decode_race, speeds_of
from tputfind.analysis.recipes import LISTED, simplicity
from tputfind.analysis.turns import COSTS, Goal, Speed
from tputfind.declaration import add_options_of
from tputfind.errors import BadRequest, OutOfTime, TputfindError
from tputfind.options import device_text, none_of
from tputfind.processes import cores
from tputfind.processes.children import Children
from tputfind.processes.messages import Inspection, Plan
from tputfind.record import files
from tputfind.record.files import RecordFile
from tputfind.record.identity import has_images
from tputfind.record.record import Row, host_bound
from tputfind.record.spec import Spec, read_spec
from tputfind.record.types import LAYOUTS, MODES
from tputfind.runners.compare import inspect_at_once
from tputfind.runners.devices import HostPlace, check_recipes, is_list, overlaps, places_of
from tputfind.runners.find import add_model_traceback, show_progress
from tputfind.runners.race import Course
from tputfind.runners.sweep import Job, each_recipe, sweep
from tputfind.session import pickling
from tputfind.session.health import Watch
from tputfind.session.inspect import apply_inspection, inspect, now
from tputfind.session.outcome import no_answer
from tputfind.session.progress import Progress
from tputfind.session.resume import recorded_winner, resumed_contenders
from tputfind.session.trials import TrialRunner, diagnosis_of
from tputfind.session.turns import Duel, UnknownCost, Variant

BUDGET_S: Final = 600.0
OF_RACE: Final = 0.7
"""Fraction of the budget for the race; the rest is for the winner, whose rows and largest batch are deployed."""
_LATEST: Final = 0.8
"""Fraction of the budget after which a round that takes longer than expected is ended."""
_FIRST_ERROR: Final = 0.004
"""Standard error of a ratio that suffices in a first round, which mostly shows by itself who leads."""
_OF_SCAN: Final = 0.15
_OF_GRAPHS: Final = ("cudagraph", "compile:reduce-overhead")
"""Modes that fall back to another mode on a device without graphs."""
_STRIDE: Final = 2
"""Powers of two from one batch size of the scan to the next, so that it comes to those that keep the device busy."""
_GAIN: Final = 1.1
"""Minimum gain in throughput for which the next batch size of the scan is worth racing at."""
_LONGEST_BATCH_MS: Final = 2000.0
_LARGEST_BATCH: Final = 2**14
_SMALLER: Final = 3
"""Number of batch sizes below that of the race at which the winner is timed before its largest batch is sought: they
may answer sooner, and a compiler takes long for large batches."""
_SHORT: Final = Plan(
    batches=3, least_batches=1, window_s=0.2, latency_batches=20, every_latency=False, warmup=1, max_seconds=2.0
)


class Asked(NamedTuple):
    """A request to race: the plain variant, the levels of each factor, the goal, and the folder for the record.

    ``devices`` is a list of equal devices, which race in parallel; None for the device of the variants. ``before`` is
    the race that goes on.
    """

    plain: Spec
    levels: Levels
    goal: Goal
    folder: Path | None
    command: str
    devices: str | None = None
    before: Race | None = None

    @property
    def budget_s(self) -> float:
        """Maximum seconds of the whole run."""
        return self.plain.budget_s or BUDGET_S


def read_request(model: str, options: Mapping[str, object], goal: object, folder: Path | None, command: str) -> Asked:
    """Return the request: lists of dtypes, layouts, allocators and modes are varied; BadRequest if an option is wrong.

    The dtype and the allocator are varied only if several are given; another dtype has other outputs. Layouts and modes
    are all tried unless some are given. On a CPU, ``measure`` also varies the number of cores, and of instances unless
    some are given.
    """
    given = {name: value for name, value in options.items() if value is not None}
    device = device_text(given.get("device"))
    devices = device if isinstance(device, str) and is_list(device) else None
    if devices is not None:
        del given["device"]
    specs = sorted(dict.fromkeys(read_spec(model, one) for one in each_recipe(given)), key=simplicity)
    if devices is not None:
        check_recipes(model, each_recipe(given), devices)
    plain = specs[0]
    if len(plain.batch_sizes or (1,)) > 1:
        raise BadRequest("--batch-sizes: a race is at one batch size")
    if plain.gpus is not None or plain.parallel is not None:
        raise BadRequest("a race is on one device: leave --gpus and --parallel out")
    levels: dict[str, tuple[str | int, ...]] = {
        name: tuple(dict.fromkeys(getattr(spec, name) for spec in specs)) if name in given else () for name in LISTED
    }
    levels |= {"layout": levels["layout"] or LAYOUTS, "mode": levels["mode"] or MODES}
    if goal not in COSTS:
        raise BadRequest(f"--for: {none_of(goal, tuple(COSTS))}")
    return Asked(plain, levels, cast("Goal", goal), folder, command, devices)


@add_options_of(Spec)
def tune(
    model: str | Callable[..., object],
    *,
    goal: Goal = "throughput",
    inputs: Callable[[int], object] | None = None,
    output: str | Path | None = None,
    resume: Race | str | Path | None = None,
    progress: bool | Progress | None = None,
    trust_model_file: bool = False,
    **options: object,
) -> Race:
    """Find the best recipe of a model by racing: layouts, modes and, on a CPU, numbers of cores and of instances.

    Each variant meets the leader in turn, as in ``compare``, until it is certainly faster, or certainly not faster by
    more than 2 %. The winner is measured in full.

    Args:
        model: as for ``find``.
        goal: ``throughput``, ``memory`` and ``energy`` race for samples per second, per GiB and per joule, at a batch
            size that is nearly as fast as any; ``latency`` at the smallest.
        inputs: the function that makes the inputs of a live module, as for ``find``.
        output: a folder for the winner's record; None saves nothing.
        resume: a race of the same model and options, or its file, which goes on for another ``budget``.
        progress: whether to show progress on stderr; or a listener that receives it instead.
        trust_model_file: load a file of a model even if that can run code.
        options: as for ``find``. Lists of ``dtype``, ``layout``, ``allocator``, ``mode`` and ``instances`` are varied.
            ``budget`` is 10 min by default. A list as ``device``, such as ``"all"``, races on all of them in parallel.

    Returns:
        The race: ``winner``, its ``record``, and ``contenders`` with the outcome of each.

    Raises:
        TputfindError: an option is wrong, or the device or the model does not allow it.
    """
    folder = None if output is None else files.path_of("output", output)
    if folder is not None:
        files.check_folder(folder)
    words = " ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)
    name = pickling.name_of(model)
    asked = read_request(name, options, goal, folder, f"tune {name} {words}".strip())
    before = resume if resume is None or isinstance(resume, Race) else decode_race(files.content(resume), str(resume))
    asked = asked._replace(before=before)
    with (
        show_progress(progress) as told,
        add_model_traceback(),
        pickling.pickle_model(model, inputs) as file,
        ExitStack() as stack,
    ):

        def start(**place: Any) -> Children:
            return stack.enter_context(Children(trust_model_file=trust_model_file, live=file, **place))

        raced = measure(asked, start, told)
    if raced.race.interrupted:
        raise KeyboardInterrupt
    if raced.ended_by is not None:
        warnings.warn(f"the winner was not measured in full: {raced.ended_by}", stacklevel=2)
    if raced.file is not None and raced.file.problem is not None:
        warnings.warn(f"the record was not saved: {raced.file.problem}", stacklevel=2)
    return raced.race


class _Lane(NamedTuple):
    """A device of a race, with a server of processes for either side; an empty ``device`` is that of the variants.

    ``homes`` holds the server in which a variant ran last, which keeps what was compiled for it.
    """

    device: str
    sides: tuple[Children, Children]
    watch: Watch
    homes: dict[Spec, Children]

    def take_round(self, duel: Duel, random: Random) -> None:
        """Take one more round of a duel on this device; errors as for ``Duel.take_round``."""
        old, new = (_on(self.device, variant.spec) for variant in duel.variants)
        first, second = self.sides
        is_swapped = self.homes.get(old, first) is second or (old not in self.homes and self.homes.get(new) is first)
        sides = (second, first) if is_swapped else self.sides
        self.homes.update(zip((old, new), sides, strict=True))
        duel.variants = [
            variant._replace(spec=spec, children=children, watch=self.watch)
            for variant, spec, children in zip(duel.variants, (old, new), sides, strict=True)
        ]
        duel.take_round(random)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the thread that takes a round."""
        for each in self.sides:
            each.interrupt()


class Raced(NamedTuple):
    """A race, the file of the winner's record, and the error that ended it after the winner was found.

    ``file`` is None if no record was begun, or if it was there before; ``ended_by`` is None also if the budget ended.
    """

    race: Race
    file: RecordFile | None = None
    ended_by: TputfindError | None = None


def measure(asked: Asked, start: Callable[..., Children], progress: Progress) -> Raced:
    """Race the variants, and measure the winner in full.

    ``start`` starts a server of processes, with the variables and the cores of a place. OutOfTime before anything was
    timed; TputfindError if the plain variant does not run, or the devices are not equal.
    """
    begin_s, started = monotonic(), now()
    progress.about(asked.plain.model)
    progress.doing("looking at the model and the device", None)
    places = [HostPlace("")] if asked.devices is None else places_of(asked.devices, start())
    if len(kinds := list(dict.fromkeys(place.kind for place in places))) > 1:
        raise BadRequest(f"a race in parallel is on equal devices, and these are {', '.join(kinds)}", "name equal ones")
    for warning in overlaps(places):
        progress.did(warning)
    servers = [start(variables=place.variables, cores=place.cores) for place in places]
    sides = [(children.copy(), children.copy()) for children in servers]
    everyone = [*servers, *chain.from_iterable(sides)]
    for each in everyone:
        each.end_within(asked.budget_s)
    specs = [_on(place.name, asked.plain) for place in places]
    inspections = inspect_at_once(specs, servers)
    environments = [one.environment for one in inspections]
    inspection = inspections[0]
    plain = apply_inspection(specs[0], inspection)
    can, name = inspection.environment.can, inspection.environment.device_name
    cost = COSTS[asked.goal]
    if cost.needs and not getattr(can, cost.needs):
        raise UnknownCost(cost, name)
    levels = dict(asked.levels)
    if can.is_cpu:
        levels["device"] = _core_sets(plain.device)
        if asked.goal == "throughput" and not levels["instances"]:
            levels["instances"] = _instances(plain)
    if not has_images(inspection.input_shape) or plain.phase == "step":
        levels["layout"] = (plain.layout,)
    if plain.phase == "step":
        levels["mode"] = (plain.mode,)
    if not can.graphs and levels["mode"] == MODES:
        levels["mode"] = tuple(mode for mode in MODES if mode not in _OF_GRAPHS)
    if all(len(values) < 2 for values in levels.values()):
        hint = "give lists, such as --dtype fp16,bf16, or leave the others out"
        if plain.phase == "step":
            hint = "compare --run OLD NEW finds the faster of two steps"
        raise BadRequest("there is nothing to vary", hint)
    sha256, before = inspection.source_sha256, asked.before
    contenders: list[Contender] = []
    if before is None:
        batch_size, plain, timed = _batch_size(asked, plain, inspection, servers[0], progress)
    else:
        contenders = resumed_contenders(before, asked.goal, plain, name, sha256)
        batch_size, plain, timed = before.batch_size, contenders[0].spec, before.timed

    if cost.alone or plain.slo_ms is not None:  # more instances than samples would race with more samples than others
        fitting = [count for count in levels["instances"] if int(count) * plain.granularity <= batch_size]
        levels["instances"] = tuple(fitting) or (plain.instances,)
        if all(len(values) < 2 for values in levels.values()):
            raise BadRequest(f"batch {batch_size} is too small for instances, and there is nothing else to vary")

    lanes = [
        _Lane(place.name, both, Watch(one.device_uuid if cost.needs == "health" else None), {})
        for place, both, one in zip(places, sides, environments, strict=True)
    ]

    def as_variant(spec: Spec, number: int) -> Variant:
        return Variant(spec, batch_of(spec, batch_size), sides[0][number], can, cost)

    def inspect_variant(variant: Variant) -> Variant:
        return variant._replace(spec=apply_inspection(variant.spec, inspect(variant.spec, variant.children)))

    def as_duel(leader: Spec, challenger: Spec) -> Duel:
        variants = as_variant(leader, 0), as_variant(challenger, 1)
        return Duel(*variants, inspect=inspect_variant, first_error=_FIRST_ERROR, one_model=True)

    left_s = begin_s + OF_RACE * asked.budget_s - monotonic()
    course = Course(plain, levels, as_duel, left_s, progress=progress, before=contenders, lanes=lanes)
    for each in everyone:
        each.end_within(begin_s + _LATEST * asked.budget_s - monotonic())
    file, record, ended_by, is_over, interrupted = None, None, None, False, False
    try:
        with ExitStack() as stack:
            for lane in lanes:
                stack.enter_context(lane.watch)
            course.run()
        is_over = True
        left_s = begin_s + asked.budget_s - monotonic()
        lane = next(one for one in lanes if one in course.lanes)
        raced_at = (batch_of(course.leader, batch_size),)
        only = None if course.leader.batch_sizes is None else raced_at
        winner = _on(lane.device, course.leader)
        children = lane.homes.get(winner, lane.sides[0])
        winner = msgspec.structs.replace(winner, budget_s=max(round(left_s), 1), batch_sizes=only)
        if before is not None:
            children.end_within(max(left_s, 1.0))
            record = recorded_winner(before, winner, inspect(winner, children))
        for each in everyone:
            each.end_within(None)
        if record is None:
            left_s = begin_s + asked.budget_s - monotonic()
            winner = msgspec.structs.replace(winner, budget_s=max(round(left_s), 1))
            job = Job([winner], asked.folder, asked.command, first=_first_sizes(winner, raced_at[0]))
            (measured,) = sweep(job, children, progress)
            file, record = measured.file, measured.record if measured.record.rows else None
            if measured.ended_by is not None:
                raise measured.ended_by
    except TputfindError as error:
        if not is_over:
            raise
        ended_by = None if isinstance(error, OutOfTime) else error
    except KeyboardInterrupt:
        interrupted = True
    if record is None and file is None and before is not None:
        record = recorded_winner(before, course.leader)
    race = Race(
        goal=asked.goal,
        batch_size=batch_size,
        device_name=name,
        devices=len(course.lanes),
        started=started,
        budget_s=asked.budget_s + (before.budget_s if before else 0),
        seconds=monotonic() - begin_s + (before.seconds if before else 0),
        contenders=course.contenders,
        winner=course.leader,
        record=record,
        interrupted=interrupted,
        source_sha256=sha256,
        timed=timed,
    )
    return Raced(race, file, ended_by)


def _on(device: str, spec: Spec) -> Spec:
    """Return a spec on a device; an empty one is its own."""
    return msgspec.structs.replace(spec, device=device or spec.device)


def _core_sets(device: str) -> tuple[str, ...]:
    """Return the sets of cores to try on a CPU: all cores, half of them, and one; or only the set that was named."""
    if ":" in device:
        return (device,)
    here = sorted(cores.here())
    counts = dict.fromkeys(count for count in (len(here) // 2, 1) if 0 < count < len(here))
    return (device, *(f"cpu:{cores.text(frozenset(here[:count]))}" for count in counts))


def _instances(plain: Spec) -> tuple[int, ...]:
    """Return the numbers of instances to try: powers of two, up to the number of cores."""
    here = cores.device_cores(plain.device) or cores.here()
    return tuple(count for count in (1, 2, 4, 8, 16) if count <= len(here))


def _sizes_to_scan(plain: Spec, goal: Goal) -> list[int]:
    """Return the batch sizes among which that of the race is found, at least one."""
    largest = 1 if COSTS[goal].alone else min(plain.max_batch or _LARGEST_BATCH, _LARGEST_BATCH)
    sizes = plain.sizes_up_to(max(largest, plain.granularity))
    return sizes if plain.slo_ms is not None else sorted({*sizes[::_STRIDE], sizes[-1]})


def _first_sizes(winner: Spec, raced_at: int) -> tuple[int, ...]:
    """Return the batch sizes to time first: that of the race, and smaller ones, the largest first.

    A winner that is faster than the plain variant may meet an SLO at the next larger one.
    """
    if winner.batch_sizes is not None:
        return (raced_at,)
    larger = [] if winner.slo_ms is None else [2 * raced_at]
    allowed = [size for size in larger if size <= (winner.max_batch or size)]
    return (raced_at, *allowed, *reversed(winner.sizes_up_to(raced_at - 1)[-_SMALLER:]))


def _rows_of_scan(runner: TrialRunner, sizes: Sequence[int]) -> Generator[Row]:
    """Yield a row for each batch size; the processes of a model that compiles itself time one each."""
    left = list(sizes)
    while left:
        with closing(runner.time_batches(left, 1, _SHORT, None, ())) as rows:
            for row in rows:
                left.pop(0)
                yield row


def _rows_before_refusal(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield rows until a batch size is refused, such as one with more samples than there are; the first must not be."""
    yield next(rows)
    with suppress(TputfindError):
        yield from rows


def _batch_size(
    asked: Asked, plain: Spec, inspection: Inspection, children: Children, progress: Progress
) -> tuple[int, Spec, tuple[Speed, ...]]:
    """Return the batch size to race at, the plain variant with settings that run, and the batch sizes that it timed.

    It is the requested batch size, or one that is nearly as fast as any within the SLO; for latency it is the smallest.
    TputfindError if not even the smallest batch runs.
    """
    if plain.batch_sizes is not None:
        return plain.batch_sizes[0], plain, ()
    scanned = msgspec.structs.replace(plain, mode="eager")  # a compiler takes long for each batch size
    runner = TrialRunner(children, scanned, inspection.environment)
    sizes = _sizes_to_scan(plain, asked.goal)
    progress.doing("looking for the batch size to race at", _OF_SCAN * asked.budget_s)
    until_s = monotonic() + _OF_SCAN * asked.budget_s
    best, best_per_s, is_flat = 0, 0.0, False
    timed: list[Speed] = []
    with closing(_rows_of_scan(runner, sizes)) as rows:
        for row in _rows_before_refusal(rows):
            timed += speeds_of([row] if scanned == plain else [])
            late = best and too_late(plain, row)
            if row.samples_per_s is None or late:
                break
            was_flat, is_flat = is_flat, row.samples_per_s < _GAIN * best_per_s
            if is_flat and (was_flat or host_bound(row) is False):  # one that waits for the host may be disturbed
                break
            if not is_flat:
                best, best_per_s = row.batch_size, row.samples_per_s
            if 1000 * row.batch_size / row.samples_per_s > _LONGEST_BATCH_MS or monotonic() > until_s:
                break
    if best or row.failure is None:
        return (best or sizes[0]) * plain.instances, plain, tuple(timed)
    # The process of the rows has ended, so that another can find the cause.
    found = diagnosis_of(children, plain, row.batch_size, inspection.environment.can).settings
    if not found:
        raise no_answer(plain, row.batch_size, row.failure)
    return _batch_size(asked, msgspec.structs.replace(plain, **found), inspection, children, progress)
