"""The work of one child process: it answers one question."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from select import select
from time import monotonic, perf_counter
from typing import Final, NamedTuple

import msgspec

from tputfind.errors import TputfindError
from tputfind.processes import messages
from tputfind.processes.failures import Circumstances, Passed, exception_failure, for_want_of_memory, said
from tputfind.record.record import Failure, OutputCheck, Row, Sight, Timing, Trial
from tputfind.record.spec import Spec
from tputfind.record.trace import Trace
from tputfind.worker import ranks
from tputfind.worker.batch import Batch
from tputfind.worker.clocks import time_methods, time_pipeline
from tputfind.worker.devices import all_devices, failure_of
from tputfind.worker.devices.protocol import Device, MemoryUse, Stopwatch
from tputfind.worker.diagnosis import diagnose
from tputfind.worker.inspect import inspect, open_device_of, try_device
from tputfind.worker.loops import MOST_MARKED, Work, moments, trial_step_ms, try_steps
from tputfind.worker.models import named_models, slow_imports
from tputfind.worker.modes import mode_class
from tputfind.worker.modes.compile import check_still, fell_back, graphs_now
from tputfind.worker.output_check import check_output, grows_with_each_step, remembers_inputs, values_of_outputs
from tputfind.worker.own_step import OwnStep, make_workload
from tputfind.worker.timing import Windows, time_windows, turns
from tputfind.worker.transfer import LEAD_IN, Transfer
from tputfind.worker.warm_up import Load
from tputfind.worker.workload import Workload, gradients

_CHECK_STEPS: Final = 10
"""Maximum time of an output check, in steps."""


def answer(question: bytes, send: Callable[[bytes], None], gate_fd: int) -> None:
    """Answer one question, a ``messages.Envelope``, by messages that are each a ``messages.Reply``, all as JSON.

    ``gate_fd`` has a byte to read each time that a child which waits for other processes may go on.
    """

    def say(reply: messages.Reply) -> None:
        send(msgspec.json.encode(reply))

    threading.excepthook = _end_if_memory_ran_out
    envelope = msgspec.json.decode(question, type=messages.Envelope)
    asked = envelope.question
    ranks.begin(envelope.group)
    meets = isinstance(asked, messages.TakeTurns) or (isinstance(asked, messages.TimeBatches) and asked.together)
    listener = _Told(say, gate_fd if meets else None)
    try:
        for number, said in enumerate(_answers(asked, listener)):
            say(msgspec.structs.replace(_answer(said), imports=() if number else _imports()))
        say(messages.Reply(done=True))
    except TputfindError as error:
        say(messages.Reply(refusal=messages.Refusal.of(error)))


def _end_if_memory_ran_out(raised: threading.ExceptHookArgs) -> None:
    """Print the exception that ends a thread; end the process if memory ran out, since the step may wait for it."""
    threading.__excepthook__(raised)
    error = raised.exc_value
    if error is not None and for_want_of_memory(exception_failure(error, Circumstances())):
        os.write(2, f"\na thread cannot allocate memory: {type(error).__name__}: {said(error)}\n".encode())
        os._exit(1)


def _imports() -> tuple[str, ...]:
    try:
        return slow_imports()
    except Exception:  # the limit on memory may leave none; the user's code may have changed sys.modules
        return ()


def _answer(said: msgspec.Struct) -> messages.Reply:
    return messages.Reply(answer=msgspec.Raw(msgspec.json.encode(said)))


class _Told:
    def __init__(self, say: Callable[[messages.Reply], None], gate_fd: int | None) -> None:
        self._say = say
        self._gate_fd = gate_fd
        self.met_s = 0.0  # seconds spent waiting for other processes
        self.graphs = 0  # number of compiled graphs at the begin of the throughput window

    def busy(self, seconds: float) -> None:
        self._say(messages.Reply(busy_s=seconds))

    def doing(self, what: str) -> None:
        self._say(messages.Reply(doing=what))

    def window(self, *, begins: bool) -> None:
        if begins:
            self.graphs = graphs_now()
        self._say(_answer(messages.Timed(window="begins" if begins else "ended", at_s=monotonic())))

    def send_row(self, row: Row) -> None:
        self._say(_answer(messages.Timed(unchecked=row)))

    def meet(self, work: Callable[[], int]) -> int:
        if self._gate_fd is None:
            return 0
        self._say(_answer(messages.Timed(window="meets", at_s=monotonic())))
        steps, start = 0, perf_counter()
        while not select([self._gate_fd], [], [], 0)[0]:
            steps += work()
        os.read(self._gate_fd, 1)  # empty if the parent is gone
        self.met_s += perf_counter() - start
        return steps

    def has_turn(self) -> bool:
        """Wait at the gate; return True if this process may go on, False if the parent is gone or there is no gate."""
        return self._gate_fd is not None and bool(os.read(self._gate_fd, 1))


def _answers(question: messages.Question, listener: _Told) -> Iterator[msgspec.Struct]:
    match question:
        case messages.Inspect(spec):
            yield inspect(spec)
        case messages.TryBatch():
            yield from _try_batch(question, listener)
        case messages.TimeBatches():
            yield from _time_batches(question, listener)
        case messages.TakeTurns():
            yield from _take_turns(question, listener)
        case messages.TimeMethods():
            yield from time_methods(question, listener.busy)
        case messages.TimePipeline(asked):
            yield from time_pipeline(asked, listener.busy)
        case messages.TraceOnFake(spec, batch_size):
            from tputfind.worker.fake_trace import fake_trace  # slow to import and rarely needed

            yield fake_trace(spec, batch_size)
        case messages.Diagnose():
            yield diagnose(question)
        case messages.ListModels(zoo):
            yield from named_models(zoo)
        case messages.ListDevices():
            yield from (device.environment() for device in all_devices())
        case messages.TryDevice(name):
            yield try_device(name)


class _Tried(NamedTuple):
    """A trial and its device; the batch and the time of its first step, if the process continues with the batch."""

    trial: Trial
    device: Device
    loaded: _Loaded | None = None
    first_step_ms: float = 0.0


def _try_batch(asked: messages.TryBatch, listener: _Told) -> Iterator[Trial | messages.Timed]:
    tried = _run_trial(asked, listener)
    if asked.then is None:
        yield tried.trial
        return
    yield messages.Timed(trial=tried.trial)
    if tried.loaded is not None:
        timing = messages.TimeBatches(
            asked.spec,
            asked.then,
            (asked.batch_size,),
            memory_limit_bytes=asked.memory_limit_bytes,
            passed=asked.passed,
            can=asked.can,
        )
        yield from _time_batches(timing, listener, tried)


def _run_trial(asked: messages.TryBatch, listener: _Told) -> _Tried:
    limit_bytes = asked.memory_limit_bytes or asked.spec.memory_of_each_bytes
    trial = Trial(batch_size=asked.batch_size, steps=asked.steps, memory_limit_bytes=limit_bytes)
    device = open_device_of(asked.spec, asked.can)
    loaded: _Loaded | None = None
    try:
        device.limit_memory(limit_bytes, by_module=mode_class(asked.spec.mode).as_it_is)
        if not asked.spec.has_instances:  # which share the memory, so that the requests of one tell too little
            device.record_allocations()
        workload = make_workload(asked.spec, device.torch_device, listener.doing)
        with gradients(asked.spec):
            loaded = _load(asked.spec, device, workload, asked.batch_size)
            if ranks.leads():
                spans_ms, returned = try_steps(device, loaded.work, asked.steps, listener.busy)
                ranks.end_turns()
            else:
                _follow(device, loaded.work)
                spans_ms, returned = [0.0], None  # rank 0 reports them
        _check_still(asked.spec, loaded)
        device.check_limit()
        used, trace = device.memory_use(), _trace(device, asked.batch_size, complete=True)
        # A compiled model is timed in a process of its own: the seconds to compile it are reported with the row.
        goes_on = asked.then is not None and mode_class(asked.spec.mode).as_it_is and loaded.batch.compiled is None
        if not goes_on:
            device.lift_limit()
            _check_samples(loaded)
    except TputfindError:
        raise
    except BaseException as error:  # a model can raise anything, even SystemExit; failure_of classifies it
        ranks.wait_if_lost(error)
        failure = failure_of(error, device, asked.batch_size, asked.passed, asked.spec.smallest_batch)
        trace = _trace(device, asked.batch_size, complete=False)
        if loaded is not None:
            _check_samples(loaded, failed=True)
        seen = loaded.batch.seen if loaded else ()
        return _Tried(msgspec.structs.replace(trial, failure=failure, trace=trace, seen=seen), device)
    trial = msgspec.structs.replace(
        trial,
        step_ms=trial_step_ms(spans_ms),
        compiled=loaded.batch.compiled,
        peak_allocated_bytes=used.peak_allocated_bytes,
        peak_reserved_bytes=used.peak_reserved_bytes,
        trace=trace,
        seen=loaded.batch.seen,
        returned=returned,
    )
    return _Tried(trial, device, loaded if goes_on else None, spans_ms[0])


def _follow(device: Device, work: Work) -> None:
    """Run each step that rank 0 runs, then wait for the device."""
    ranks.follow(work, device)
    device.synchronize()


def _check_samples(loaded: _Loaded, *, failed: bool = False) -> None:
    """Verify the batch size of every batch; see ``Workload.check_samples``.

    It may call the user's callable for half the batch. If the callable runs out of memory, the check is skipped. If the
    step ``failed``, other errors of the callable are ignored, since the first failure is reported.
    """
    try:
        for batch in loaded.batches:
            loaded.workload.check_samples(batch)
    except TputfindError:
        raise
    except BaseException as error:  # the user's callable can raise anything
        if not failed and exception_failure(error, Circumstances(loaded.batch.size)).kind != "out_of_memory":
            raise


def _trace(device: Device, batch_size: int, *, complete: bool) -> Trace | None:
    """Return the trace of allocations; None if the device cannot provide it, which must not fail the trial."""
    try:
        return device.trace(batch_size, complete=complete)
    except Exception:  # torch's private interface fails, or the device is no longer usable
        return None


def _time_batches(
    asked: messages.TimeBatches, listener: _Told, tried: _Tried | None = None
) -> Iterator[messages.Timed]:
    """Yield the result of each batch size; ``tried`` is the trial of the first one, if this process ran it."""
    device = open_device_of(asked.spec, asked.can) if tried is None else tried.device
    workload = tried.loaded.workload if tried is not None and tried.loaded is not None else None
    passed, load = asked.passed, Load()
    for place, batch_size in enumerate(asked.batch_sizes):
        if place and asked.spec.own_code:  # the size before may be in reference cycles, which its windows froze
            gc.unfreeze()
            gc.collect()
        start, met_s = perf_counter(), listener.met_s
        try:
            if workload is None:
                limit_bytes = asked.memory_limit_bytes or asked.spec.memory_of_each_bytes
                device.limit_memory(limit_bytes, by_module=mode_class(asked.spec.mode).as_it_is)
                workload = make_workload(asked.spec, device.torch_device, listener.doing)
            row = _time_batch(asked, device, workload, batch_size, listener, load=load, tried=tried)
        except TputfindError:
            raise
        except BaseException as error:  # as above
            ranks.wait_if_lost(error)
            failure = failure_of(error, device, batch_size, passed, asked.spec.smallest_batch)
            row = Row(batch_size=batch_size, failure=failure)
        seconds = perf_counter() - start - (listener.met_s - met_s)
        yield messages.Timed(row=msgspec.structs.replace(row, seconds=seconds))
        compiled = not mode_class(asked.spec.mode).as_it_is or any(timing.compiled for timing in row.timings)
        diverged = asked.spec.phase != "infer" and row.output is not None and row.output.result == "not_finite"
        if row.failure is not None or not device.usable() or compiled or diverged:
            # The memory of a model compiled or captured for one batch size would add to that of the next; the weights
            # of one that diverged stay NaN.
            return
        passed = Passed(batch_size, row.peak_reserved_bytes)


def _memory_use(device: Device, number: int) -> MemoryUse:
    """Return the memory that a row took; unknown on a CPU if its process has run other rows: see ``Session``."""
    shared = number > 0 and not device.capabilities.own_memory
    return MemoryUse(None, None, None) if shared else device.memory_use()


def _time_batch(
    asked: messages.TimeBatches,
    device: Device,
    workload: Workload | OwnStep,
    batch_size: int,
    listener: _Told,
    *,
    load: Load,
    tried: _Tried | None = None,
) -> Row:
    spec = asked.spec
    with gradients(spec):
        loaded = tried.loaded if tried is not None else None
        loaded = loaded or _load(spec, device, workload, batch_size, asked.number)
        if not ranks.leads():
            _follow(device, loaded.work)
            device.check_limit()
            used = _memory_use(device, asked.number)
            _check_samples(loaded)
            return Row(batch_size=batch_size, **used._asdict())
        try:
            windows = time_windows(device, loaded.work, loaded.stopwatch, asked.plan, listener, load=load)
            last = windows.output if _is_left_alone(asked, loaded.batch) else None
            windows = windows._replace(output=None)
            listener.meet(moments(device, loaded.work))
            _check_still(spec, loaded)
            device.check_limit()
        except BaseException:
            _check_samples(loaded, failed=True)
            raise
        used = _memory_use(device, asked.number)
        if device.memory_is_short():  # a kernel of the check that cannot be loaded now would never load in this process
            device.reset_memory_use()
        first_step_ms = windows.throughput.first_step_ms if tried is None else round(tried.first_step_ms, 6)
        timing = _timing(spec, device, windows, loaded, first_step_ms)
        if tried is not None:
            device.lift_limit()  # as after a trial: checking the samples may take memory
        seen = tuple(_observations(loaded, compiled_before=listener.graphs))
        _check_samples(loaded)
        row = Row(
            batch_size=batch_size,
            timings=(timing,),
            **used._asdict(),
            parameter_bytes=workload.parameter_bytes,
            gradient_bytes=workload.gradient_bytes,
            seen=seen,
            samples=_samples(workload, batch_size),
        )
        listener.send_row(row)
        listener.busy(_CHECK_STEPS * max(windows.latency_ms) / 1000)
        output = _check(spec, device, workload, loaded.batch, last) if asked.number == 0 else None
        del last
        ranks.end_turns()
        if isinstance(output, Failure):
            return Row(batch_size=batch_size, failure=output)
        if _remembers_inputs(asked, device, loaded, min(windows.latency_ms)):
            seen += ("cached",)
        first = tried is None and not asked.number  # after a trial no limit is left
        if first and _grows(device, loaded, min(windows.latency_ms)):
            seen += ("grows",)
    return msgspec.structs.replace(row, output=output, seen=seen)


def _take_turns(asked: messages.TakeTurns, listener: _Told) -> Iterator[messages.Turn]:
    """Yield a turn when the process is warm, one for each window that the gate admits, and one with values of outputs.

    A failure is the last. Outputs are checked after the windows: the check runs other batch sizes, for which a model
    that compiles parts of itself makes other programs.
    """
    spec, size = asked.spec, asked.batch_size
    device = open_device_of(spec, asked.can)
    try:
        device.limit_memory(spec.memory_of_each_bytes, by_module=mode_class(spec.mode).as_it_is)
        workload = make_workload(spec, device.torch_device, listener.doing)
        with gradients(spec):
            loaded = _load(spec, device, workload, size)
            if not ranks.leads():
                _follow(device, loaded.work)
                return
            take = turns(device, loaded.work.holding(), loaded.stopwatch, listener.busy, asked.window_s)
            first = take(alone=not asked.alone)
            used, compiled = device.memory_use(), loaded.batch.compiled
            ready = messages.Turn(
                device_ms=_round_to_nanoseconds(first.synchronised_ms),
                submission_ms=_round_to_nanoseconds(first.submission_ms),
                samples=_samples(workload, size) or size,
                compile_s=None if compiled is None else compiled.seconds,
                peak_allocated_bytes=used.peak_allocated_bytes,
                peak_reserved_bytes=used.peak_reserved_bytes,
            )
            yield ready
            while listener.has_turn():
                submission_ms, spans_ms = map(_round_to_nanoseconds, take(alone=asked.alone))
                yield msgspec.structs.replace(ready, device_ms=spans_ms, submission_ms=submission_ms)
            _check_still(spec, loaded)
            device.check_limit()
            output, last = None, messages.Turn()
            if asked.number == 0:
                yield messages.Turn()  # the windows count even if the check ends the process
                _check_samples(loaded)
                output, last = _check(spec, device, workload, loaded.batch), _last_turn(spec, workload)
            ranks.end_turns()
            yield msgspec.structs.replace(last, failure=output if isinstance(output, Failure) else None)
    except TputfindError:
        raise
    except BaseException as error:  # as above
        ranks.wait_if_lost(error)
        yield messages.Turn(failure=failure_of(error, device, size, None, spec.smallest_batch))


def _samples(workload: Workload | OwnStep, batch_size: int) -> int | None:
    """Return the number of samples per step over all processes of a job; None if it is the batch size."""
    count = ranks.process_count()
    samples = workload.samples(batch_size)
    return samples if count == 1 else count * (samples or batch_size)


def _is_left_alone(asked: messages.TimeBatches, batch: Batch) -> bool:
    """Return whether the last output stays intact until its check, since nothing runs or restores inputs before."""
    once = asked.number == 0 and not asked.together and batch.restore is None
    return once and asked.spec.phase == "infer" and asked.spec.transfer == "none"


def _observations(loaded: _Loaded, *, compiled_before: int) -> Iterator[Sight]:
    yield from loaded.batch.seen
    if loaded.workload.trains_by_stand_in:
        yield "loss_stand_in"
    if loaded.workload.has_own_optimizers:
        yield "own_optimizers"
    if fell_back():
        yield "fell_back"
    elif graphs_now() != compiled_before:
        yield "recompiled"


def _remembers_inputs(asked: messages.TimeBatches, device: Device, loaded: _Loaded, step_ms: float) -> bool:
    spec = asked.spec
    if asked.number or spec.phase != "infer" or spec.transfer != "none" or ranks.process_count() > 1:
        return False
    if not mode_class(spec.mode).as_it_is or not isinstance(loaded.workload, Workload):
        return False
    try:
        return remembers_inputs(device, loaded.batch, partial(loaded.workload.new_batch, loaded.batch.size), step_ms)
    except Exception:  # out of memory for more inputs, or the model rejects them: no finding then
        return False


def _grows(device: Device, loaded: _Loaded, step_ms: float) -> bool:
    """Return whether each step of the model is measured to leave more memory in use."""
    if ranks.process_count() > 1:
        return False
    try:
        return grows_with_each_step(device, loaded.batch, step_ms)
    except Exception:  # out of memory, or the model rejects further steps: no finding then
        return False


def _check_still(spec: Spec, loaded: _Loaded) -> None:
    """Refuse the timing of a compiled step that was recompiled; a model that compiles itself only gets a notice."""
    if not mode_class(spec.mode).as_it_is:
        check_still(loaded.batch.compiled)


def _timing(spec: Spec, device: Device, windows: Windows, loaded: _Loaded, first_step_ms: float) -> Timing:
    throughput = windows.throughput
    copies_ms = (None, None) if loaded.transfer is None else loaded.transfer.copies_ms(device)
    # No separate submission time: on the CPU the call does the work itself, and a gradient scaler waits for it.
    enqueue_ms = [] if spec.scales_gradients or not device.capabilities.events else windows.enqueue_ms
    compiled = loaded.batch.compiled is not None or not mode_class(spec.mode).as_it_is
    no_first = loaded.workload.settles or compiled or device.slows_first_step
    return Timing(
        device_ms=_round_to_nanoseconds(throughput.device_ms),
        latency_ms=_round_to_nanoseconds(windows.latency_ms),
        enqueue_ms=_round_to_nanoseconds(enqueue_ms),
        one_window=windows.one,
        first_step_ms=None if no_first else first_step_ms,
        warmup_steps=throughput.warmup_steps,
        warmup_s=throughput.warmup_s,
        steady=throughput.steady,
        ended_by=throughput.ended_by,
        copy_in_ms=copies_ms[0],
        copy_out_ms=copies_ms[1],
        compiled=loaded.batch.compiled,
    )


def _round_to_nanoseconds(spans_ms: Sequence[float]) -> tuple[float, ...]:
    """Round milliseconds to nanoseconds, the resolution of the clocks; more digits only make records longer."""
    return tuple(round(span, 6) for span in spans_ms)


def _check(
    spec: Spec, device: Device, workload: Workload | OwnStep, batch: Batch, output: object = None
) -> OutputCheck | Failure | None:
    """Check the given output of the batch, or that of one more step; an error of the check does not fail the row."""
    try:
        if spec.phase != "infer":
            return workload.check_training(batch)
        if batch.restore is not None:
            batch.restore()
        return check_output(batch, spec.dtype, max(2, spec.granularity), output, short=device.memory_is_short())
    except Exception as error:  # the model may not accept the small batches, or memory is used up
        failure = exception_failure(error, Circumstances(batch.size, None, device.under_a_ceiling))
        why = "no memory was left for it" if failure.kind == "out_of_memory" else f"the check failed: {failure.message}"
        return OutputCheck(result="unchecked", remark=why)


def _last_turn(spec: Spec, workload: Workload | OwnStep) -> messages.Turn:
    """Return the last turn; without values if the smallest batch does not run, or in training."""
    if spec.phase != "infer" or not isinstance(workload, Workload):
        return messages.Turn()
    try:
        batch, sources = workload.batch_to_compare()
        return messages.Turn(values=values_of_outputs(batch, spec.dtype), sources=sources)
    except Exception:  # the model may not accept it, or memory is used up
        return messages.Turn()


class _Loaded(NamedTuple):
    workload: Workload | OwnStep
    stopwatch: Stopwatch
    batches: list[Batch]
    work: Work
    transfer: Transfer | None

    @property
    def batch(self) -> Batch:
        return self.batches[0]


def _load(spec: Spec, device: Device, workload: Workload | OwnStep, batch_size: int, draw: int = 0) -> _Loaded:
    """Put a batch on the device with everything that timing needs, events included.

    Trials load the same as rows, since a few MiB matter near the largest batch.
    """
    device.reset_memory_use()
    stopwatch = device.stopwatch(MOST_MARKED + 1)
    if spec.transfer == "none":
        transfer = None
        batches = [workload.batch(batch_size, draw)]
        work = Work(batches[0], batches[0], restore=lambda: batches[0].restore)
    else:
        transfer = Transfer(lambda: workload.batch(batch_size, draw), back=spec.transfer == "both")
        batches, work = transfer.batches, Work(transfer.step, transfer.single, LEAD_IN)
    ranks.skip_steps_timed_by_ddp()
    device.synchronize()  # else the first step would wait for the inputs
    device.check_limit()
    return _Loaded(workload, stopwatch, batches, work, transfer)
