"""Where models come from, by how their names are written."""

from typing import Final, Literal, NamedTuple, cast

SourceName = Literal["torchvision", "timm", "hf", "file", "factory", "live"]
SAVED_SUFFIXES: Final = (".pt", ".pth", ".ts", ".pt2")
"""Of files that hold a model: TorchScript, and programs of torch.export."""
LIVE: Final = " (live)"
"""Ends the name of an object that Python code handed to ``find``; nothing can be found by that name."""


class ModelSource(NamedTuple):
    """A source of models: the ``package`` that has them, None where they are the user's own.

    Names with a ``prefix`` begin with that of the source (``timm:vit_tiny_patch16_224``), which also names the extra of
    this package that installs the other one.
    """

    package: str | None = None
    prefix: bool = False


SOURCES: Final[dict[SourceName, ModelSource]] = {
    "torchvision": ModelSource("torchvision"),
    "timm": ModelSource("timm", prefix=True),
    "hf": ModelSource("transformers", prefix=True),
    "file": ModelSource(),
    "factory": ModelSource(),
    "live": ModelSource(),
}


def source_of(model: str) -> SourceName:
    """Return where a model comes from."""
    if model.endswith(LIVE):
        return "live"
    first, apart, _ = model.partition(":")
    if apart and any(source.prefix and name == first for name, source in SOURCES.items()):
        return cast("SourceName", first)
    if model.endswith(SAVED_SUFFIXES):
        return "file"
    return "factory" if apart else "torchvision"
