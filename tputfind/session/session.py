"""The growing record of a run: answers come from the record, or from a fresh process whose answer is recorded."""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from math import inf
from typing import Final

import msgspec

from tputfind.analysis import notices
from tputfind.analysis.answers import answers
from tputfind.errors import DeviceInUse
from tputfind.processes.failures import Passed, for_want_of_memory, is_kernel_fault
from tputfind.record.files import RecordFile
from tputfind.record.record import TRIAL_STEPS, Edge, Failure, LimitedBy, Record, Row, Trial, merge_rows
from tputfind.record.types import LARGEST_BATCH
from tputfind.search.edge import bracket
from tputfind.search.forecast import Known, NonMonotonic, expected_batch, expected_non_monotonic, index_limits
from tputfind.session import expectations, progress, stopping
from tputfind.session.barrier import Seat
from tputfind.session.inspect import now
from tputfind.session.outcome import LIMITS, check_batch_size_counts, judge_output, no_answer, obstacle
from tputfind.session.progress import Progress
from tputfind.session.trials import UNSTEADY_ATTEMPTS, TrialRunner, expected_s, is_other_memory_equal

_LONGER_STEPS: Final = 20
"""Steps of a longer trial: a batch that fits for the three steps of a trial may fail in a fourth, whose memory blocks
can lie elsewhere."""
_SMALL: Final = 64
"""Under a budget, batch sizes below the largest divided by this are timed last."""
_ROW_OF_BUDGET: Final = 1 / 8
"""Maximum fraction of a budget for a row whose batch the search tries: longer rows wait until the search has ended."""
_LONGEST_SEARCH_S: Final = 300.0
"""Maximum total seconds of trials in which larger batches are tried while none has failed; half of it for one trial."""
_ELEMENT_BYTES: Final = {"fp16": (2,), "bf16": (2,), "fp32": (4,), "tf32": (4,)}
"""Bytes of an activation's element, by dtype; other dtypes have elements of 2 and of 4 bytes."""
_OF_THE_MODEL: Final = ("error", "unsupported", "index_limit")
"""Failures raised by a step, which the handling of the model may have caused."""


class RunsOtherwise(Exception):
    """Raised if a failed model runs in another way; the record holds that way from then on."""


class Session:
    """One run under way: its record grows, and is saved at every change. No trial or row is measured twice."""

    def __init__(self, record: Record, runner: TrialRunner, record_file: RecordFile, listener: Progress) -> None:
        self.record = record
        self._start_s = time.perf_counter() - record.wall_s
        self._spec = record.spec
        self.runner = runner
        self._file = record_file
        self._progress = listener
        self._diagnosed: set[str] = set()

    def until_it_runs(self, work: Callable[[], None]) -> None:
        """Run ``work``, and again from the start each time that a model turns out to run in another way."""
        while True:
            try:
                return work()
            except RunsOtherwise as found:
                self._progress.did(f"{found}")

    def time_rows(self, batch_sizes: Sequence[int]) -> None:
        """Time batch sizes until each has ended (see ``stopping``), or until the edge's row has failed in a round.

        Under a budget, batch sizes far below the largest come last: they are host-bound, and no answer depends on them.
        If each has a process of its own, the others are timed from the largest down: the fastest is mostly among those.
        """
        while True:
            number, left = stopping.next_round(self._spec, self.record.rows, batch_sizes, self.record.edge)
            if number:  # every batch size has had its turn, so that the deciding ones are known
                self.time_singly()
                self.update(rows=stopping.end_rows(self._spec, self.record.rows, self.record.edge))
            largest = self.row(self.record.edge.largest_batch) if self.record.edge is not None else None
            if not left or (largest is not None and largest.failure is not None):
                return
            edge = None if self._spec.budget_s is None else self.record.edge
            small = 0 if edge is None else edge.largest_batch / _SMALL
            step = 1 if edge is None or self.record.environment.can.own_memory else -1
            self._time_round(sorted(left, key=lambda size: (size < small, step * size)), number)

    def time_once(self, batch_sizes: Sequence[int]) -> None:
        """Time each batch size that has no row yet, in a first process."""
        left = [size for size in batch_sizes if self.row(size) is None]
        self._time_round(left, 0)

    def _time_round(self, left: Sequence[int], number: int) -> None:
        """Time each batch size in one more process; one process times several batch sizes if the device allows it.

        A row that fails after others in its process gets a second try, in a fresh process.
        """
        while left:
            # A process knows the peak of host memory over its whole life only: the first process of a row times no
            # other row.
            together = left if number or self.record.environment.can.own_memory else left[:1]
            settled = self._time_together(together, number, left[len(together) :])
            left = left[settled:]

    def update(self, **fields: object) -> None:
        """Replace fields of the record, update its notices, and save it: the run may end at any time."""
        grown = msgspec.structs.replace(self.record, wall_s=time.perf_counter() - self._start_s, **fields)
        self.record = msgspec.structs.replace(grown, notices=notices.of(grown))
        self._file.save(self.record)
        self._progress.measured(self.record)

    def finish(self) -> None:
        """Record that the measurement is finished, and why the rows that want a further process ended."""
        edge = self._edge_that_ran()
        rows = stopping.end_rows(self._spec, self.record.rows, edge, over=True)
        self.update(edge=edge, rows=rows, finished=now())

    def save_again(self) -> None:
        """Save the measured record once more, with the edge so far: the last save may have been interrupted."""
        edge = self.record.edge
        with suppress(DeviceInUse):  # the edge so far depends on the memory of other processes
            edge = self._edge_that_ran() or self.edge_so_far()
        if self.record.trials or self.record.rows:
            self.update(edge=edge)

    def _edge_that_ran(self) -> Edge | None:
        """Return the edge found, or that by the trials and rows so far if its row failed and no time was left."""
        edge = self.record.edge
        row = None if edge is None else self.row(edge.largest_batch)
        return edge if row is None or row.failure is None else self.edge_so_far() or edge

    def edge_so_far(self) -> Edge | None:
        """Return the edge by the trials and rows so far; None if batch sizes were given, or none passed."""
        spec, limit_bytes = self._spec, self.runner.memory_limit_bytes
        if spec.batch_sizes is not None:
            return None
        answers = expectations.answers(self.record, limit_bytes, self.runner.memory_of_others_bytes())
        timed = {row.batch_size: None if row.failure is None else LIMITS[row.failure.kind] for row in self.record.rows}
        both = {size: answers.get(size) or timed.get(size) for size in {*answers, *timed}}  # it fits if it passed both
        found = bracket(both, spec.granularity)
        if found is None:
            return None
        cap = (spec.max_batch or LARGEST_BATCH) // spec.granularity * spec.granularity
        if found.largest_batch == cap:
            found = msgspec.structs.replace(found, limited_by="cap", closed=True)
        return msgspec.structs.replace(found, memory_limit_bytes=limit_bytes)

    def try_batch(
        self, batch_size: int, *, steps: int = TRIAL_STEPS, memory_limit_bytes: int | None = None
    ) -> LimitedBy | None:
        """Return why a batch does not fit for ``steps`` steps, from the record or a fresh process; None if it fits."""
        limit_bytes = memory_limit_bytes or self.runner.memory_limit_bytes
        trial = self._trial(batch_size, steps, limit_bytes)
        if trial is None:
            self._announce_trial(batch_size, steps, limit_bytes)
            passed = self._passed_below(batch_size)
            trial = self.runner.try_batch(
                batch_size, passed, steps=steps, memory_limit_bytes=limit_bytes, taken=self.record.trials
            )
            trial = judge_output(self.record, trial)
            self._stop_if_the_model_fails(batch_size, trial.failure)
            self._keep_trial(trial)
        return obstacle(self.record, trial)

    def try_to_time(self, batch_size: int) -> LimitedBy | None:
        """Return why a batch does not fit, as ``try_batch`` does; the process goes on to time it if a row is due.

        A row is due for every power of two that fits, and for the largest batch. Under a budget, only the first batch
        counts of these powers, and the row must be expected to take a small part of the budget. Across several devices,
        the largest batch is timed in a second process: collectives free memory at any time, so that one process may
        pass by chance.
        """
        known = self._trial(batch_size, TRIAL_STEPS, self.runner.memory_limit_bytes)
        if known is None and self._is_row_due(batch_size):
            self._try_and_time(batch_size)
        return self.try_batch(batch_size)

    def _is_row_due(self, batch_size: int) -> bool:
        spec = self._spec
        expected_s = expectations.seconds_of_rows(self.record, [batch_size], compiled=True) or 0.0
        if self.row(batch_size) is not None or expected_s > _ROW_OF_BUDGET * (spec.budget_s or inf):
            return False
        fits, fails = self._bracket(self.runner.memory_limit_bytes)
        above = min(fails or LARGEST_BATCH, (spec.max_batch or LARGEST_BATCH) + 1)
        is_edge = spec.device_count == 1 and fits < batch_size < above <= batch_size + spec.granularity
        is_early = spec.budget_s is None or not self.record.trials
        return is_edge or (is_early and batch_size in spec.sizes_up_to(batch_size))

    def _try_and_time(self, batch_size: int) -> None:
        self._announce_trial(batch_size, TRIAL_STEPS, self.runner.memory_limit_bytes)
        planned, passed = stopping.process_plan(self._spec, 0), self._passed_below(batch_size)
        with closing(self.runner.try_and_time(batch_size, passed, planned, self.record.trials)) as answers:
            trial = next(answers)
            assert isinstance(trial, Trial)
            trial = judge_output(self.record, trial)
            believed = any(is_kernel_fault(before.failure) for before in self.record.trials)
            if is_kernel_fault(trial.failure) and not believed:  # ``try_batch`` repeats the trial as often as needed
                return
            if obstacle(self.record, trial) is None:
                self._keep_trial(trial)
                self._progress.doing(
                    progress.timing(batch_size, 0, 0),
                    expectations.seconds_of_rows(self.record, [batch_size], compiled=True),
                )
                row = next(answers, None)
                if isinstance(row, Row):
                    self._progress.did(f"batch {batch_size}: {progress.result(row, 0)}")
                    self._keep(row)
                return
        self._stop_if_the_model_fails(batch_size, trial.failure)  # its process has ended, so that another can start
        self._keep_trial(trial)

    def _announce_trial(self, batch_size: int, steps: int, limit_bytes: int | None) -> None:
        fits, fails = self._bracket(limit_bytes)
        seconds_left = expectations.seconds_of_search(self.record, fits, fails)
        self._progress.doing(progress.question(batch_size, steps, fits, fails), seconds_left)

    def _keep_trial(self, trial: Trial) -> None:
        check_batch_size_counts(self.record, trial)
        self.update(trials=(*self.record.trials, trial))
        self._progress.did(f"batch {trial.batch_size} {progress.verdict(trial, obstacle(self.record, trial))}")

    def expected_edge(self, passes: int, fails: int | None, *, memory_limit_bytes: int | None = None) -> int | None:
        """Return the largest batch expected from the trials so far, as ``search.edge`` takes it.

        Returns None if the search runs without forecasts, or if there is no forecast.
        """
        if self._spec.search != "forecast":
            return None
        return expected_batch(self.known(memory_limit_bytes or self.runner.memory_limit_bytes), passes, fails)

    def index_limits(self) -> list[int]:
        """Return the batch sizes above which, by the traces, a tensor has more elements than 32 bits count."""
        traces = [trial.trace for trial in self.record.trials if trial.trace is not None]
        return index_limits(traces, _ELEMENT_BYTES.get(self._spec.dtype, (2, 4)))

    def is_worth_a_trial(self, batch_size: int) -> bool:
        """Whether a trial of a batch is expected to end in time, and to leave as much time for the next batch.

        A batch whose answer is recorded costs nothing, and a batch below one that failed is always worth a trial. A
        linear search may take any number of trials.
        """
        trials, limit_bytes = self.record.trials, self.runner.memory_limit_bytes
        if self._trial(batch_size, TRIAL_STEPS, limit_bytes) is not None or self._bracket(limit_bytes)[1]:
            return True
        seconds = expected_s(batch_size, trials) or 0.0
        taken_s = 0.0 if self._spec.search == "linear" else sum(trial.seconds for trial in trials)
        left_s = min(_LONGEST_SEARCH_S - taken_s, self.runner.seconds_left())
        return seconds <= min(left_s, _LONGEST_SEARCH_S / 2)

    def lacks_time(self) -> bool:
        """Whether ``--budget`` leaves less time than the longest trial may take."""
        return self.runner.seconds_left() < _LONGEST_SEARCH_S / 2

    def edge_if_expandable(self) -> int | None:
        """Return the largest batch expected with expandable segments; None without a forecast, or if they are on."""
        return expectations.edge_if_expandable(self.record, self.known(self.runner.memory_limit_bytes))

    def known(self, memory_limit_bytes: int | None) -> Known:
        """Return the input of a forecast under a limit in bytes; None for the device's own memory."""
        return expectations.known(self.record, memory_limit_bytes, self.runner.memory_of_others_bytes())

    def probe_non_monotonic(self, edge: Edge) -> NonMonotonic:
        """Try the batch on either side of an edge set by memory that is expected to break the order, if there is one.

        That is a smaller batch that fails, or a larger one that fits. If steps at the edge take longer than a row may,
        both are left untried, and the record keeps the forecast. A larger batch that passes its trial runs a longer
        one, since it has no row. Returns the expected batch sizes.
        """
        spec, limit_bytes, largest = self._spec, self.runner.memory_limit_bytes, edge.largest_batch
        if spec.search != "forecast" or edge.limited_by != "memory" or edge.fails_at is None:
            return NonMonotonic(None, None)
        known = self.known(limit_bytes)
        both_sides = {**known.answers, largest: True, edge.fails_at: False}
        around = expected_non_monotonic(known._replace(answers=both_sides), largest)
        at_edge = self._trial(largest, TRIAL_STEPS, limit_bytes)
        if at_edge is not None and TRIAL_STEPS * (at_edge.step_ms or 0.0) > 1000 * stopping.row_seconds(spec):
            self.update(edge=msgspec.structs.replace(edge, smaller_forecast=around.fails))
            return around
        if around.fails is not None and self.try_batch(around.fails) != "memory":
            return around  # the forecast is wrong
        if around.fits is None or self.try_batch(around.fits) is not None:
            return around
        trial = self._trial(around.fits, TRIAL_STEPS, limit_bytes)
        steps = max(_LONGER_STEPS, TRIAL_STEPS + spec.soak)
        if trial is not None and steps * (trial.step_ms or 0.0) <= 1000 * stopping.row_seconds(spec):
            self.try_batch(around.fits, steps=steps)
        return around

    def prove(self, batch_size: int) -> LimitedBy | None:
        """Time a batch, both sides of which were tried, in a fresh process, and soak it; it fits only if both pass.

        Under a budget, timing waits for the batch's turn, unless ``--soak`` or ``--headroom`` depend on it: other rows
        take less time and say more. Once a row has failed, trials are unreliable, and every batch is timed at once.
        """
        self.update(edge=self.edge_so_far())
        spec = self._spec
        waits = spec.budget_s is not None and not spec.soak and spec.headroom is None
        if waits and self.row(batch_size) is None and all(row.failure is None for row in self.record.rows):
            return None
        obstacle = self.time_alone(batch_size)
        if obstacle is not None or not self._spec.soak:
            return obstacle
        return self.try_batch(batch_size, steps=TRIAL_STEPS + self._spec.soak)

    def time_alone(self, batch_size: int) -> LimitedBy | None:
        """Return why a batch fails when it is timed, from the record or a fresh process; None if it passes.

        As with trials, it is timed again if it failed while other processes took or freed memory.
        """
        row = self.row(batch_size)
        for _ in range(UNSTEADY_ATTEMPTS):
            if row is not None and not self._has_same_memory_use(row):
                self.update(rows=tuple(other for other in self.record.rows if other is not row))
            self.time_once([batch_size])
            row = self.row(batch_size)
            assert row is not None
            if row.failure is None:
                return None
        assert row is not None
        assert row.failure is not None
        return LIMITS[row.failure.kind]

    def _time_together(self, batch_sizes: Sequence[int], number: int, later: Sequence[int]) -> int:
        """Time batch sizes in one fresh process, record each row as it arrives, and return the number of settled ones.

        A row that fails first in its process is recorded as failed; a row that fails after others stays unsettled.
        ``number`` is the number of the row's process, from 0; ``later`` batch sizes only add to the time left.
        """
        settled, failed = 0, None
        passed = self._passed_below(batch_sizes[0])
        planned = stopping.process_plan(self._spec, number)
        with closing(self.runner.time_batches(batch_sizes, number, planned, passed, self.record.trials)) as rows:
            while settled < len(batch_sizes):
                ahead = (*batch_sizes[settled:], *later)
                seconds_left = expectations.seconds_of_rows(self.record, ahead, number)
                self._progress.doing(progress.timing(ahead[0], number, len(ahead) - 1), seconds_left)
                row = next(rows, None)
                if row is None:
                    break
                self._progress.did(f"batch {row.batch_size}: {progress.result(row, number)}")
                if row.failure is not None:
                    failed = None if settled else row
                    break
                self._keep(row)
                settled += 1
        if failed is not None:  # its process has ended, so that another can find the cause
            self._stop_if_the_model_fails(failed.batch_size, failed.failure)
            self._keep(failed)
            settled += 1
        return settled

    def time_singly(self) -> None:
        """Time the batch sizes of the answers once more, in one process on the first of several devices alone."""
        if self._spec.device_count == 1:
            return
        wanted = sorted({row.batch_size for _, row in answers(self.record)})
        while left := [size for size in wanted if all(row.batch_size != size for row in self.record.single_rows)]:
            self._progress.doing(f"timing batch {left[0]} on one device by itself", None)
            planned, alone = stopping.process_plan(self._spec, 0), self.runner.single_device_runner()
            with closing(alone.time_batches(left, 0, planned, None, self.record.trials)) as rows:
                for row in rows:
                    if row.failure is not None and row.batch_size != left[0]:
                        break  # other rows left memory behind: it is timed again, in a fresh process
                    self._progress.did(f"batch {row.batch_size} on one device: {progress.result(row, 0)}")
                    self.update(single_rows=(*self.record.single_rows, row))

    def time_beside_others(self, batch_size: int, seat: Seat, taken: Sequence[Trial]) -> None:
        """Time a batch size in one more process, which meets the processes of other devices at its seat.

        The trials ``taken`` on the device alone set the timeout.
        """
        row = self.row(batch_size)
        number = 0 if row is None else len(row.timings)
        self._progress.doing(f"timing batch {batch_size} with all devices busy, process {number + 1}", None)
        planned = stopping.process_plan(self._spec, number)
        for timed in self.runner.time_batches((batch_size,), number, planned, None, taken, seat=seat):
            self._keep(timed)

    def _keep(self, row: Row) -> None:
        before = self.row(row.batch_size)
        others = (other for other in self.record.rows if other is not before)
        whole = row if before is None else merge_rows(before, row)
        whole = msgspec.structs.replace(whole, ended_by=stopping.ended_by(self._spec, whole))
        self.update(rows=tuple(sorted((*others, whole), key=lambda row: row.batch_size)))

    def _trial(self, batch_size: int, steps: int, limit_bytes: int | None) -> Trial | None:
        """Return the trial that answers a question already, taken at the same memory use of other processes as now."""
        asked = (batch_size, steps, limit_bytes)
        same = (t for t in self.record.trials if (t.batch_size, t.steps, t.memory_limit_bytes) == asked)
        return next((trial for trial in same if self._has_same_memory_use(trial)), None)

    def row(self, batch_size: int) -> Row | None:
        return self.record.row(batch_size)

    def _has_same_memory_use(self, taken: Trial | Row) -> bool:
        return is_other_memory_equal(taken.memory_of_others_bytes, self.runner.memory_of_others_bytes())

    def edge_is_current(self, edge: Edge) -> bool:
        """Whether both sides of an edge were tried at the same memory use of other processes as now."""
        largest: list[Row | Trial] = [row for row in self.record.rows if row.batch_size == edge.largest_batch]
        largest = largest or [trial for trial in self.record.trials if trial.batch_size == edge.largest_batch]
        above = [one for one in self.record.attempts if one.batch_size == edge.fails_at]
        return all(not taken or any(map(self._has_same_memory_use, taken)) for taken in (largest, above))

    def drop_outdated_rows(self, edge: Edge) -> None:
        """Drop rows above an edge that were timed at another memory use of other processes than now."""
        kept = (
            row for row in self.record.rows if row.batch_size <= edge.largest_batch or self._has_same_memory_use(row)
        )
        if len(rows := tuple(kept)) < len(self.record.rows):
            self.update(rows=rows)

    def _passed_below(self, batch_size: int) -> Passed | None:
        taken = [one for one in self.record.attempts if one.failure is None]
        below = [Passed(one.batch_size, one.peak_reserved_bytes) for one in taken if one.batch_size < batch_size]
        return max(below, key=lambda passed: passed.batch_size, default=None)

    def _bracket(self, limit_bytes: int | None) -> tuple[int, int]:
        """Return the largest batch size that fits under a limit by its trials, and the next that failed, or 0."""
        trials = [trial for trial in self.record.trials if trial.memory_limit_bytes == limit_bytes]
        fits = max((each.batch_size for each in trials if obstacle(self.record, each) is None), default=0)
        above = [each.batch_size for each in trials if each.batch_size > fits]
        return fits, min(above, default=0)

    def _stop_if_the_model_fails(self, batch_size: int, failure: Failure | None) -> None:
        """End the run if the smallest batch fails for another reason than memory, and no other batch has passed.

        A larger batch may fail because it repeats samples, or because the model takes a fixed number of samples.
        RunsOtherwise if the model runs in another way, which the record now holds; else the error that ``no_answer``
        makes of the failure.
        """
        spec, smallest = self._spec, batch_size == self._spec.smallest_batch
        if not (smallest or spec.own_code) or failure is None or for_want_of_memory(failure):
            return
        self._diagnose(batch_size, failure)
        if smallest and all(one.failure is not None for one in self.record.attempts):
            if is_kernel_fault(failure):
                self.update(trials=tuple(map(_blame_model, self.record.trials)))
            raise no_answer(self._spec, batch_size, failure)

    def _diagnose(self, batch_size: int, failure: Failure) -> None:
        """Find out, once for each error, whether the model failed or its handling; see ``worker.diagnosis``."""
        about = re.sub(r"\d+", "", failure.message)  # a message may name sizes
        if about in self._diagnosed or failure.kind not in _OF_THE_MODEL:
            return
        self._diagnosed.add(about)
        self._progress.doing(f"finding out why batch {batch_size} fails: {failure.plain}", None)
        found = self.runner.diagnose(batch_size, failure)
        if not found.settings:
            return
        self._spec = self.runner.spec = msgspec.structs.replace(self._spec, **found.settings)
        self._diagnosed.clear()
        caveats = (*self.record.caveats, *found.caveats)
        step = self._spec.granularity if found.settings.keys() == {"granularity"} else None
        trials, rows, singles = (
            tuple(one for one in taken if step is not None and one.batch_size % step == 0)  # multiples run as before
            for taken in (self.record.trials, self.record.rows, self.record.single_rows)
        )
        kept = {"trials": trials, "rows": rows, "single_rows": singles}
        self.update(spec=self._spec, caveats=caveats, edge=None, safe=None, **kept)
        raise RunsOtherwise("; ".join(notice.seen for notice in found.caveats))


def _blame_model(trial: Trial) -> Trial:
    """Return a trial whose kernel limit counts as the model's own error, since the smallest batch has it too."""
    if trial.failure is None or trial.failure.kind != "kernel_limit":
        return trial
    return msgspec.structs.replace(trial, failure=msgspec.structs.replace(trial.failure, kind="error"))
