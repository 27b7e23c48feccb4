"""The errors that a user can meet: one line, a hint, an exit code. Running out of memory is a result, not an error."""

from typing import Final


class TputfindError(Exception):
    """Base of every error that the command line prints as one line.

    ``message`` says what happened, ``hint`` what to do next, each in one line; the hint may be empty. ``traceback`` is
    that of the user's own code, if that is the cause.
    """

    exit_code = 1
    kind = "error"
    """The kind of a failed row that stands for it: a ``FailureKind``."""

    def __init_subclass__(cls, exit_code: int = 1) -> None:
        cls.exit_code = exit_code

    def __init__(self, message: str, hint: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.traceback = traceback

    def __str__(self) -> str:
        """Return the message and the hint, since a Python traceback shows nothing else."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class Regression(TputfindError, exit_code=1):
    """Raised when a row of a comparison is slower than ``--fail-slower`` allows."""


class BadRequest(TputfindError, ValueError, exit_code=2):
    """Raised when an option, or a combination of options, is invalid."""


class UnknownModel(TputfindError, LookupError, exit_code=2):
    """Raised when a model's name, file or factory does not lead to a module."""


class IsOwnStep(TputfindError, exit_code=2):
    """Raised when an object passed as a model is a step of the user's own.

    ``made`` is the result of the factory within the process that called it; None if no factory was called.
    """

    made: object = None


class BrokenInstall(TputfindError, ImportError, exit_code=2):
    """Raised when torch or torchvision does not import, or no process can be started to do it."""


class BadRecord(TputfindError, ValueError, exit_code=2):
    """Raised when a file is not a record that this version reads."""


class OutOfTime(TputfindError, exit_code=2):
    """Raised when ``--budget`` ends before anything was timed."""


class NoSuchDevice(TputfindError, exit_code=3):
    """Raised when the device does not exist or does not support the dtype."""

    kind = "unsupported"


class DeviceInUse(TputfindError, exit_code=3):
    """Raised when other processes hold memory of the device and the user requires it to be free."""


class NothingFits(TputfindError, exit_code=4):
    """Raised when not even the smallest batch fits."""

    kind = "out_of_memory"


class ModelFailed(TputfindError, exit_code=5):
    """Raised when the model itself fails; carries its traceback, and the kind of its failure."""


class NoPlan(TputfindError, exit_code=6):
    """Raised when no number of devices meets a demand."""


class TooNoisy(TputfindError, exit_code=7):
    """Raised when records are too noisy to decide whether ``compare --fail-slower`` is met."""


class Interrupted(TputfindError, exit_code=130):
    """Raised when the user stopped the run; the message names the files that were saved."""


BY_NAME: Final[dict[str, type[TputfindError]]] = {kind.__name__: kind for kind in TputfindError.__subclasses__()}
"""Error classes by name, to rebuild an error that a child process or a node of a cluster reports."""
