"""Finds out whether the first step fails by the model itself or by a setting; leaves each setting out in turn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from tputfind.errors import BadRequest, NoSuchDevice
from tputfind.processes.failures import UNUSED_PARAMETERS, Circumstances, exception_failure, said
from tputfind.processes.messages import Diagnose, Diagnosis
from tputfind.record.record import Notice, Sight
from tputfind.record.spec import Spec
from tputfind.record.types import GRAD_MODES
from tputfind.worker.devices.protocol import Device
from tputfind.worker.inspect import LARGEST_NAMED, candidates, granularity_notice, open_device_of
from tputfind.worker.own_step import OwnStep, make_workload
from tputfind.worker.placing import free_memory
from tputfind.worker.workload import Workload, gradients

_STEPS: Final = 2
_LARGEST_OF_FEW: Final = 2**16
_MOST_VALUES: Final = 2**25
"""Input values of a batch that is tried since an error names its size; one of up to 512 samples may have more."""
_MOST_LENGTHS: Final = 8
"""Inputs that are tried as the only lengths on the host."""
_SHOWN: Final = 3
_MODES_IN_WORDS: Final = {"no_grad": "torch.no_grad", "enabled": "torch.enable_grad"}


def diagnose(asked: Diagnose) -> Diagnosis:
    """Return the change with which the model runs at a batch size; an empty diagnosis if none was found.

    If the smallest batch runs as it is, a larger one can only be helped by samples that are not repeated; or the
    smallest batch runs alone, since its one sample is repeated for a fixed number of samples.

    A model that runs only without a requested dtype, layout or eval mode, or only at other batch sizes than the
    requested ones, raises NoSuchDevice or BadRequest.
    """
    spec = replace(asked.spec, mode="eager")  # an error of another mode is reported by the mode itself
    device = open_device_of(spec, asked.can)
    device.make_current()
    attempt = _Attempt(spec, device)
    first = attempt.error(asked.batch_size)
    if first is None or exception_failure(first, Circumstances()).kind == "out_of_memory":
        return Diagnosis()

    def runs_with(**changed: Any) -> bool:
        attempt.release()  # two models may exceed the memory
        return _Attempt(replace(spec, **changed), device).error(asked.batch_size) is None

    if "inputs_repeated" in attempt.seen and runs_with(fresh_inputs=True):
        notice = Notice(
            kind="fresh_inputs",
            seen="the input function makes all samples of each batch",
            cause=f"batch {asked.batch_size} fails if samples are repeated: {said(first)}",
            advice="--fresh-inputs says so beforehand",
        )
        return Diagnosis(fresh_inputs=True, caveats=(notice,))
    if asked.batch_size != spec.smallest_batch and attempt.error(spec.smallest_batch) is None:
        runs_alone = spec.batch_sizes is None and attempt.error(2 * spec.smallest_batch) is not None
        find = _find_granularity if runs_alone else _find_multiples
        return find(attempt, first, asked.batch_size) or Diagnosis()
    if spec.phase == "infer":
        for mode in GRAD_MODES[GRAD_MODES.index(spec.grad_mode) + 1 :]:
            if runs_with(grad_mode=mode):
                name, cause = _MODES_IN_WORDS[mode], f"it fails under inference_mode: {said(first)}"
                advice = f"deploy it under {name}"
                notice = Notice(kind="grad_mode", seen=f"measured under {name}", cause=cause, advice=advice)
                return Diagnosis(grad_mode=mode, caveats=(notice,))
    is_unused = spec.parallel == "ddp" and not spec.find_unused_parameters and UNUSED_PARAMETERS in f"{first}"
    names = attempt.names_without_gradient(first) if is_unused else ""
    if is_unused and runs_with(find_unused_parameters=True):
        notice = Notice(
            kind="unused_parameters",
            seen="trained in DistributedDataParallel with find_unused_parameters=True",
            cause=f"a backward pass leaves {names} without gradients",
            advice="DDP looks for such parameters at every step: freeze those that are never trained",
        )
        return Diagnosis(find_unused_parameters=True, caveats=(notice,))
    can_keep = spec.phase != "step" and spec.own_code and not device.capabilities.is_cpu and attempt.lengths > 0
    alone = range(1, 1 + min(attempt.lengths, _MOST_LENGTHS)) if attempt.lengths > 1 else ()
    for number in (None, *alone) if can_keep else ():
        if runs_with(host_lengths=True, lengths_input=number):
            which = "inputs stay" if number is None else f"input {number} of {attempt.lengths} stays"
            notice = Notice(
                kind="host_lengths",
                seen=f"one-dimensional integer {which} on the host",
                cause=f"the model fails with {'them' if number is None else 'it'} on the device: {said(first)}",
                advice="do the same where it is deployed, as torch's pack_padded_sequence needs it",
            )
            return Diagnosis(host_lengths=True, lengths_input=number, caveats=(notice,))
    found = _find_granularity(attempt, first, asked.batch_size)
    if found is not None:
        return found
    attempt.release()
    for changed, option, hint in _relaxed_specs(spec):
        if _Attempt(changed, device).error(asked.batch_size) is None:
            raise NoSuchDevice(f"{spec.model} cannot do {option}: {said(first)}", hint)
    if spec.phase == "infer" and _Attempt(spec, device, trains=True).error(asked.batch_size) is None:
        which = "fails in eval mode, in which inference is measured, and runs in training mode"
        raise BadRequest(
            f"{spec.model} {which}: {said(first)}",
            "--phase train trains it; or its factory may return a module that stays in the mode that it needs",
        )
    return Diagnosis()


class _Attempt:
    """A model built for a spec; ``error`` runs it to see whether it fails."""

    def __init__(self, spec: Spec, device: Device, *, trains: bool = False) -> None:
        self.spec = spec
        self._device = device
        self._workload: Workload | OwnStep | None = None
        self._trains = trains
        self.seen: tuple[Sight, ...] = ()
        """The observations of the last batch."""
        self.largest = LARGEST_NAMED
        """The largest batch size that may be tried because an error names it."""
        self.lengths = 0
        """The number of one-dimensional integer inputs of a model of the user's."""

    def error(self, batch_size: int) -> BaseException | None:
        """Return the exception of two steps at a batch size; None if there is none."""
        try:
            if self._workload is None:
                free_memory(self._device.torch_device)  # an earlier model may be in reference cycles
                self._workload = make_workload(self.spec, self._device.torch_device)
            if isinstance(self._workload, Workload):
                self.lengths = self._workload.lengths
                if self._trains:
                    self._workload.train()
            with gradients(self.spec):
                batch = self._workload.batch(batch_size)
                self.seen = batch.seen
                if (values := batch.values_per_sample) is not None:
                    self.largest = max(LARGEST_NAMED, min(_LARGEST_OF_FEW, _MOST_VALUES // max(values, 1)))
                for _ in range(_STEPS):
                    if batch.restore is not None:
                        batch.restore()
                    batch()
                self._device.synchronize()
        except BaseException as error:  # a model can raise anything
            return error.with_traceback(None)  # the frames would keep tensors alive
        return None

    def release(self) -> None:
        """Free the model; a further call of ``error`` builds it again."""
        self._workload = None

    def names_without_gradient(self, error: BaseException) -> str:
        """Return the names of parameters without gradient in DDP's error; ``some parameters`` if it has no numbers."""
        numbered = re.search(r"did not receive grad for rank \d+: ((?:\d+ ?)+)", f"{error}")
        if numbered is None or not isinstance(self._workload, Workload):
            return "some parameters"
        trained = self._workload.trained_names
        names = [trained[number] for number in map(int, numbered[1].split()) if number < len(trained)]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"parameters {', '.join(names[:_SHOWN])}{more}"


def _find_granularity(attempt: _Attempt, error: BaseException, failed_size: int) -> Diagnosis | None:
    """Return the smallest granularity with which the model runs; None if there is none or the spec sets one.

    A model may run at one batch size alone, as an exported program without a free batch axis does. If the spec lists
    batch sizes, the finding is raised as BadRequest.
    """
    spec = attempt.spec
    if spec.granularity > 1:
        return None
    text = said(error)
    found: tuple[int, ...] = ()
    for number in candidates(text, attempt.largest):
        if attempt.error(number) is not None:
            continue
        if attempt.error(2 * number) is None:
            found = (number, 2 * number)
            break
        found = found or (number,)
    if not found:
        return None
    if spec.batch_sizes is not None:
        raise BadRequest(
            f"{spec.model} fails at batch {spec.smallest_batch}, and runs at {' and '.join(map(str, found))}: {text}",
            f"--batch-sizes {','.join(map(str, found))} leaves the others out",
        )
    return Diagnosis(granularity=found[0], caveats=(granularity_notice(spec, found[0], failed_size, text),))


def _find_multiples(attempt: _Attempt, error: BaseException, failed_size: int) -> Diagnosis | None:
    """Return a granularity with which the model runs both below and above a failed batch size; None if there is none.

    Smaller batches may run at any size, as in a discriminator that divides each into groups of at most four.
    """
    spec, text = attempt.spec, said(error)
    if spec.granularity > 1 or spec.batch_sizes is not None:
        return None
    for number in candidates(text, attempt.largest):
        below = failed_size // number * number
        tried = (below, below + number, below - number)
        if 2 * number < below < failed_size and all(attempt.error(size) is None for size in tried):
            return Diagnosis(granularity=number, caveats=(granularity_notice(spec, number, failed_size, text),))
    return None


def _relaxed_specs(spec: Spec) -> Iterator[tuple[Spec, str, str]]:
    """Yield specs without one of the settings, each with the option of that setting and a hint."""
    if spec.layout != "nchw":
        yield replace(spec, layout="nchw"), f"--layout {spec.layout}", "--layout nchw measures it"
    if spec.dtype not in ("fp32", "own"):
        yield replace(spec, dtype="fp32"), f"--dtype {spec.dtype}", "--dtype fp32 measures it"
    if spec.dtype != "own":
        yield replace(spec, dtype="own"), f"--dtype {spec.dtype}", "--dtype own measures it as it was made"
