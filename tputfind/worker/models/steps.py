"""Steps of the user's own: how to distinguish them from models, and their source."""

import dis
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from torch import nn

from tputfind.errors import BadRequest, IsOwnStep, UnknownModel
from tputfind.processes.failures import said
from tputfind.record.spec import Spec
from tputfind.step import Step, other_arguments
from tputfind.worker.models.source import Source
from tputfind.worker.models.user_code import check_takes_nothing, needed_arguments

_MAKER: Final = "return a function without arguments: one call is one step"


class StepOfSize(Step):
    """A step that is made for each batch size; its batch is the function that runs it."""


def is_step_maker(factory: object) -> bool:
    """Return whether a callable makes a step for a batch size: it requires exactly one argument, a positional one."""
    is_module = isinstance(factory, nn.Module) or (isinstance(factory, type) and issubclass(factory, nn.Module))
    if is_module or not callable(factory):
        return False
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    needed = needed_arguments(factory)
    return len(needed) == 1 and needed[0].kind in positional


def is_step(made: object) -> bool:
    """Return whether a factory made a step: a ``Step``, or a pair of a plain function and a callable for its batch."""
    if isinstance(made, Step):
        return True
    if not isinstance(made, tuple) or len(made) != 2:
        return False
    has_module = any(isinstance(part, nn.Module) for part in made)
    return all(map(callable, made)) and not isinstance(made[0], type) and not has_module


def source_of_maker(spec: Spec, maker: Callable[[Any], object], path: Path | None = None) -> Source:
    """Return the source of the steps of a step maker, whose function for a batch size takes one step a call."""
    function = inspect.unwrap(maker)
    if inspect.iscoroutinefunction(function):
        raise BadRequest(
            f"{spec.model} is a coroutine function, which returns no step",
            "write def instead of async def, and asyncio.run inside",
        )
    if _never_reads(function):
        raise BadRequest(
            f"{spec.model} is taken as a step, since it has one parameter, and never reads its batch size",
            "make the step's batch of as many samples; a factory of a model has no parameter",
        )

    def make(batch_size: int) -> object:
        try:
            step = maker(batch_size)
        except (AttributeError, TypeError) as error:
            if "'int' object" not in f"{error}":
                raise
            (needed,) = needed_arguments(maker)
            raise BadRequest(
                f"{spec.model}({needed.name}) is called with a batch size, as one argument makes steps: {said(error)}",
                "a factory of a model takes no arguments: name a function without any that returns it",
            ) from None
        if isinstance(step, (nn.Module, tuple, Step)):  # a factory of models or of steps that takes an argument
            check_takes_nothing(spec.model, maker)
        return _check_step(f"{spec.model} called with batch size {batch_size}", step)

    return step_source(spec, lambda: StepOfSize(lambda step: step(), make), path)


def _check_step(subject: str, step: object) -> object:
    if inspect.iscoroutine(step):
        step.close()
        raise BadRequest(f"{subject} returned a coroutine, not a step", "write def instead of async def")
    if not callable(step):
        what = "nothing" if step is None else f"{type(step).__name__}, which cannot be called"
        raise BadRequest(f"{subject} returned {what}", _MAKER)
    if (other := other_arguments(step, 0)) is not None:
        raise BadRequest(f"{subject} returned a function that takes {other}", _MAKER)
    return step


def _never_reads(maker: Callable[[Any], object]) -> bool:
    """Return whether a function's code never reads its only argument; False if that cannot be seen."""
    code = getattr(maker, "__code__", None)
    if code is None or code.co_argcount != 1:
        return False
    name = code.co_varnames[0]
    if name in code.co_cellvars:
        return False
    for one in dis.get_instructions(code):
        read = one.argval if isinstance(one.argval, tuple) else (one.argval,)  # from Python 3.13 on, also two names
        if name in read or "locals" in read:
            return False
    return True


def as_step(spec: Spec, made: object) -> Step:
    """Return the result of a factory as a step; raise UnknownModel if it is none."""
    if isinstance(made, Step):
        return made
    if is_step(made):
        assert isinstance(made, tuple)
        return Step(*made)
    raise UnknownModel(
        f"{spec.model} returned {type(made).__name__}, not a step", "return a tputfind.Step(run, make_batch)"
    )


def step_source(spec: Spec, make: Callable[[], object], path: Path | None = None) -> Source:
    """Return the source of a step; raise IsOwnStep if the spec does not request a step yet."""
    if spec.phase != "step":
        raise_own_step(spec)

    return Source(lambda: raise_own_step(spec), path=path, step=lambda: as_step(spec, make()))


def raise_own_step(spec: Spec, made: object = None) -> NoReturn:
    """Raise IsOwnStep: the name stands for a step, which may be made already, but the spec requests a model."""
    error = IsOwnStep(
        f"{spec.model} is a step of its own, which runs on its device alone", "measure it there: tputfind FILE.py:NAME"
    )
    error.made = made
    raise error
