"""Why the first step fails: whether the model does, or what was done to it. Each handling is left out once."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from tputfind.errors import BadRequest, NoSuchDevice, TputfindError
from tputfind.processes.failures import UNUSED_PARAMETERS, Circumstances, of_exception, said
from tputfind.processes.messages import Diagnose, Diagnosis
from tputfind.record.record import Notice
from tputfind.record.spec import Spec
from tputfind.record.types import GRAD_MODES, GradMode
from tputfind.worker.devices.protocol import Device
from tputfind.worker.inspect import candidates, granularity_notice, opened
from tputfind.worker.own_step import OwnStep, make_workload
from tputfind.worker.workload import Workload, gradients

_STEPS: Final = 2
_SHOWN: Final = 3
_MODES_IN_WORDS: Final = {"no_grad": "torch.no_grad", "enabled": "torch.enable_grad"}


def diagnose(asked: Diagnose) -> Diagnosis:
    """Return how the model runs at its smallest batch, if it was not the model itself that failed.

    Raises:
        NoSuchDevice: the dtype or the layout that was asked for breaks it.
        BadRequest: it fails at the first of the batch sizes that were asked for, and runs at multiples of another.
    """
    spec = replace(asked.spec, mode="eager")  # a mode that cannot run a model says so itself
    device = opened(spec, asked.can)
    attempt = _Attempt(spec, device)
    first = attempt.error(asked.batch_size)
    if first is None or of_exception(first, Circumstances()).kind == "out_of_memory":
        return Diagnosis()
    if spec.phase == "infer":
        for mode in GRAD_MODES[GRAD_MODES.index(spec.grad_mode) + 1 :]:
            if _Attempt(replace(spec, grad_mode=mode), device, attempt).error(asked.batch_size) is None:
                return _of_grad_mode(mode, first)
    if spec.parallel == "ddp" and not spec.find_unused_parameters and UNUSED_PARAMETERS in f"{first}":
        finding = _Attempt(replace(spec, find_unused_parameters=True), device)
        if finding.error(asked.batch_size) is None:
            return _of_unused_parameters(attempt.names_without_gradient(first))
    found = _of_granularity(attempt, first)
    if found is not None:
        return found
    for changed, option, hint in _handlings(spec):
        if _Attempt(changed, device).error(asked.batch_size) is None:
            raise NoSuchDevice(f"{spec.model} cannot do {option}: {said(first)}", hint)
    if spec.phase == "infer" and _Attempt(spec, device, trains=True).error(asked.batch_size) is None:
        raise _fails_in_eval_mode(spec, first)
    return Diagnosis()


class _Attempt:
    """A model that is built as a spec says, and run at batch sizes to see whether it fails."""

    def __init__(self, spec: Spec, device: Device, built: _Attempt | None = None, *, trains: bool = False) -> None:
        """Take a spec and a device; what was ``built`` for the same model, dtype and layout serves again."""
        self.spec = spec
        self._device = device
        self._workload: Workload | OwnStep | None = None if built is None else built._workload  # noqa: SLF001  # of this class
        self._trains = trains

    def error(self, *batch_sizes: int) -> BaseException | None:
        """Return what a few steps at these batch sizes raise; None if nothing."""
        try:
            self._workload = self._workload or make_workload(self.spec, self._device.torch_device)
            if self._trains and isinstance(self._workload, Workload):
                self._workload.train()
            with gradients(self.spec):
                for size in batch_sizes:
                    batch = self._workload.batch(size)
                    for _ in range(_STEPS):
                        if batch.restore is not None:
                            batch.restore()
                        batch()
                    self._device.synchronize()
        except BaseException as error:  # a model can raise anything
            return error.with_traceback(None)  # whose frames would keep tensors alive
        finally:
            gc.collect()
        return None

    def names_without_gradient(self, error: BaseException) -> str:
        """Return the parameters that DDP says got no gradient; ``some parameters`` if its error has no numbers."""
        numbered = re.search(r"did not receive grad for rank \d+: ((?:\d+ ?)+)", f"{error}")
        if numbered is None or not isinstance(self._workload, Workload):
            return "some parameters"
        trained = self._workload.trained_names
        names = [trained[number] for number in map(int, numbered[1].split()) if number < len(trained)]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"parameters {', '.join(names[:_SHOWN])}{more}"


def _of_grad_mode(mode: GradMode, error: BaseException) -> Diagnosis:
    name = _MODES_IN_WORDS[mode]
    cause = f"it fails under inference_mode: {said(error)}"
    notice = Notice(kind="grad_mode", seen=f"measured under {name}", cause=cause, advice=f"deploy it under {name}")
    return Diagnosis(grad_mode=mode, caveats=(notice,))


def _of_unused_parameters(names: str) -> Diagnosis:
    notice = Notice(
        kind="unused_parameters",
        seen="trained in DistributedDataParallel with find_unused_parameters=True",
        cause=f"a backward pass leaves {names} without gradients",
        advice="DDP looks for such parameters at every step: freeze those that are never trained",
    )
    return Diagnosis(find_unused_parameters=True, caveats=(notice,))


def _of_granularity(attempt: _Attempt, error: BaseException) -> Diagnosis | None:
    """Return the least granularity with which a model runs that fails on its smallest batch; None if none is found."""
    spec = attempt.spec
    if spec.granularity > 1:
        return None
    for number in candidates(said(error)):
        if attempt.error(number, 2 * number) is None:
            if spec.batch_sizes is not None:
                raise BadRequest(
                    f"{spec.model} fails at batch {spec.smallest_batch}, and runs at {number} and {2 * number}: "
                    f"{said(error)}",
                    f"--batch-sizes {number},{2 * number},{4 * number} leaves the others out",
                )
            return Diagnosis(granularity=number, caveats=(granularity_notice(number, said(error)),))
    return None


def _handlings(spec: Spec) -> Iterator[tuple[Spec, str, str]]:
    """Yield what a model runs as if a handling is left out, the option that asks for it, and what to do instead."""
    if spec.layout != "nchw":
        yield replace(spec, layout="nchw"), f"--layout {spec.layout}", "--layout nchw measures it"
    if spec.dtype not in ("fp32", "own"):
        yield replace(spec, dtype="fp32"), f"--dtype {spec.dtype}", "--dtype fp32 measures it"
    if spec.dtype != "own":
        yield replace(spec, dtype="own"), f"--dtype {spec.dtype}", "--dtype own measures it as it was made"


def _fails_in_eval_mode(spec: Spec, error: BaseException) -> TputfindError:
    return BadRequest(
        f"{spec.model} fails in eval mode, in which inference is measured, and runs in training mode: {said(error)}",
        "--phase train trains it; or its factory may return a module that stays in the mode that it needs",
    )
