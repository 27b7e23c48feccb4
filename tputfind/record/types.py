"""The types of what a record holds, with bounds: one that was edited by hand must not lead to nonsense."""

from typing import Annotated, Final

from msgspec import Meta

from tputfind.options import LARGEST_WHOLE

LARGEST_BATCH: Final = LARGEST_WHOLE
Count = Annotated[int, Meta(ge=1, le=LARGEST_BATCH)]
CountFromZero = Annotated[int, Meta(ge=0, le=LARGEST_BATCH)]
Bytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
Above0 = Annotated[float, Meta(gt=0, le=1e15)]

# What a field is for two records that are compared, set side by side, or gone on with. Every field of Spec and of
# Environment has one of these.
WORK: Final = Meta(extra={"role": "work"})
"""Two records must agree on it."""
TOLD: Final = Meta(extra={"role": "told"})
"""Two records may differ in it, and whoever compares them is told. A run that is gone on with must agree."""
ASKED: Final = Meta(extra={"role": "asked"})
"""Says which batch sizes are looked for, which rows show anyway. A run that is gone on with must agree."""
FREE: Final = Meta(extra={"role": "free"})
"""May differ, also in a run that is gone on with."""
