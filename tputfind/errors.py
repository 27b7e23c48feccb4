"""What can go wrong for a user: one line, what to do next, an exit code. Out of memory is an answer, not an error."""

from typing import Final


class TputfindError(Exception):
    """Base of every error that the command line prints as one line.

    Args:
        message: what happened, in one line.
        hint: what to do next, in one line; may be empty.
        traceback: the traceback of the user's own code, where that is the cause.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.traceback = traceback

    def __str__(self) -> str:
        """Return what happened and what to do next: all that a traceback in Python shows."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class Regression(TputfindError):
    """Raised when a comparison finds what it was asked to fail on."""

    exit_code = 1


class BadRequest(TputfindError, ValueError):
    """Raised when an option, or several together, cannot be carried out."""

    exit_code = 2


class UnknownModel(TputfindError, LookupError):
    """Raised when a model's name, file or factory does not lead to a module."""

    exit_code = 2


class IsOwnStep(TputfindError):
    """Raised when what was taken for a model is a step of the user's own."""

    exit_code = 2


class BrokenInstall(TputfindError, ImportError):
    """Raised when torch or torchvision does not import."""

    exit_code = 2


class BadRecord(TputfindError, ValueError):
    """Raised when a file is not a record that this version reads."""

    exit_code = 2


class OutOfTime(TputfindError):
    """Raised when ``--budget`` ends before anything was timed."""

    exit_code = 2


class NoSuchDevice(TputfindError):
    """Raised when the device is not there, or cannot do the dtype."""

    exit_code = 3


class DeviceInUse(TputfindError):
    """Raised when other processes hold memory of the device and the user wants it alone."""

    exit_code = 3


class NothingFits(TputfindError):
    """Raised when not even the smallest batch fits."""

    exit_code = 4


class ModelFailed(TputfindError):
    """Raised when the model itself fails; carries its traceback."""

    exit_code = 5


class NoPlan(TputfindError):
    """Raised when no number of devices meets a demand."""

    exit_code = 6


class TooNoisy(TputfindError):
    """Raised when records are too noisy to say whether ``compare --fail-slower`` is met."""

    exit_code = 7


class Interrupted(TputfindError):
    """Raised when the user stopped the run; the message names what was saved."""

    exit_code = 130


BY_NAME: Final[dict[str, type[TputfindError]]] = {kind.__name__: kind for kind in TputfindError.__subclasses__()}
"""What a child process or a node of a cluster may report, by class name."""
