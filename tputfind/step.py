"""A step of the user's own: the object that ``FILE.py:NAME`` may return and ``tputfind.find(step=...)`` takes."""

import inspect
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple

from tputfind.errors import BadRequest
from tputfind.units import echo


class Context(NamedTuple):
    """The context of a step: its ``torch.device``, and the ``rank`` of this process among ``world_size``.

    With ``--gpus``, torch's process group is initialized before the step is made.
    """

    device: Any
    rank: int = 0
    world_size: int = 1


class Step:
    """A step of training or inference that is measured as it is: nothing in it is moved or converted.

    ::

        def step():
            device = tputfind.context().device
            model, optimizer = ...
            return tputfind.Step(lambda batch: train(model, optimizer, batch), lambda size: make(size, device))
    """

    def __init__(
        self,
        run: Callable[[Any], object],
        make_batch: Callable[[int], object],
        *,
        modules: object = (),
        optimizers: object = (),
        samples: int | Callable[[int], int] = 1,
    ) -> None:
        """Check and store the parts of a step; BadRequest if one has the wrong type.

        Args:
            run: runs one step. Its one argument is the return value of ``make_batch``: a tuple stays one argument.
            make_batch: returns, for a batch size, the batch of a step, on the device of ``context()``. It is called
                once for every batch size and process, before anything is timed.
            modules: a module, or several, whose parameters are counted in addition to those of the optimizers.
            optimizers: an optimizer, or several; by default all that the process has. Steps run until each optimizer
                has stepped, so that its state counts: a gradient scaler may skip the first steps, and a generator may
                be trained every few steps only.
            samples: samples per step and unit of batch size, as with gradient accumulation, or a function that returns
                the samples of a step for a batch size.
        """
        self.run = _function("run", run, "of a batch", "lambda batch: run(*batch) if a batch is a tuple of them")
        self.make_batch = _function("make_batch", make_batch, "of the batch size", "it returns the batch of that size")
        self.modules = _several("modules", modules, "parameters", "torch.nn.Module")
        self.optimizers = _several("optimizers", optimizers, "param_groups", "torch.optim.Optimizer")
        if not callable(samples) and (not isinstance(samples, int) or isinstance(samples, bool) or samples < 1):
            raise BadRequest(
                f"tputfind.Step: samples is {echo(samples)}, not a whole number from 1 or function of the batch size"
            )
        self.samples = samples


def _function(name: str, value: Any, of_what: str, hint: str) -> Callable[[Any], object]:
    if not callable(value):
        raise BadRequest(f"tputfind.Step: {name} is {_article(value)}, not a function {of_what}")
    if inspect.iscoroutinefunction(value):
        raise BadRequest(
            f"tputfind.Step: {name} is a coroutine function, and calling it runs nothing",
            "give a function that runs it, such as lambda batch: asyncio.run(step(batch))",
        )
    if (other := other_arguments(value, 1)) is not None:
        raise BadRequest(
            f"tputfind.Step: {name} takes {other}, and is called with one argument, {of_what.removeprefix('of ')}", hint
        )
    checked: Callable[[Any], object] = value
    return checked


def other_arguments(function: Callable[..., object], count: int) -> str | None:
    """Return the arguments of a function that cannot be called with ``count`` of them; None if it can or is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function in C without a signature
        return None
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return f"({', '.join(signature.parameters)})" if signature.parameters else "no argument"
    return None


def _several(name: str, value: object, attribute: str, kind: str) -> tuple[Any, ...]:
    """Return one object or several as a tuple."""
    values = (value,) if hasattr(value, attribute) or not isinstance(value, Iterable) else tuple(value)
    for each in values:
        if not hasattr(each, attribute):
            raise BadRequest(f"tputfind.Step: {name} holds {_article(each)}, not a {kind}")
    return values


def _article(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


_known: list[Callable[[], Context]] = []
"""The function that returns the context of this process; empty in a process that does not measure."""


def context() -> Context:
    """Return the device of a step and its rank; outside a measurement, the accelerator if there is one, or the CPU."""
    if _known:
        return _known[0]()
    torch: Any = import_module("torch")  # here, since tputfind itself is imported without it
    return Context(
        (torch.accelerator.is_available() and torch.accelerator.current_accelerator()) or torch.device("cpu")
    )


def set_context(tell: Callable[[], Context]) -> None:
    """Make ``context`` return the result of this function, in a process that measures."""
    _known[:] = [tell]
