"""The requests of a process to the device's memory allocator, in order; compact enough to keep with every trial."""

import zlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from tputfind.record.types import Bytes, Count, CountFromZero

Kind = Literal["allocate", "release", "refused", "outside"]
MOST_EVENTS: Final = 40_000
"""Maximum events; a longer trace would take seconds to replay, and is not kept."""
_KINDS: Final[tuple[Kind, ...]] = ("allocate", "release", "refused", "outside")


class Event(NamedTuple):
    """One event: its kind and its value.

    ``allocate``: a request of ``value`` bytes succeeded; ``refused``: one failed. ``release``: an allocation was freed;
    the value is its number from 0. ``outside``: from here on the process holds ``value`` bytes of the device outside
    the allocator, for its context, kernels and libraries.
    """

    kind: Kind
    value: int


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one process and one batch size.

    The first ``fixed`` allocations, such as the weights, were made before the batch existed. ``memory_bytes`` is all
    the device memory that the process could use, and ``capped`` is whether a limit on the allocator set it. If the
    trace is not ``complete``, its last event is the request that failed, if that is known.
    """

    batch_size: Count
    fixed: CountFromZero
    memory_bytes: Bytes
    capped: bool
    expandable: bool
    complete: bool
    packed: bytes

    def events(self) -> Iterator[Event]:
        """Yield the events; raise ValueError if the bytes hold no valid ones."""
        whole = zlib.decompressobj()
        try:
            data = whole.decompress(self.packed, (MOST_EVENTS + 1) * array("Q").itemsize)
            numbers = array("Q", data)
        except (zlib.error, ValueError) as error:
            raise ValueError(f"a trace cannot be read: {error}") from None
        if not whole.eof or len(numbers) > MOST_EVENTS:
            raise ValueError("a trace cannot be read: it is cut short, or longer than any that is kept")
        allocated = 0
        for number in numbers:
            value, kind = divmod(number, len(_KINDS))
            if _KINDS[kind] == "release":
                if not 1 <= value <= allocated:
                    raise ValueError("a trace gives back what it never asked for")
                yield Event("release", allocated - value)
                continue
            allocated += _KINDS[kind] == "allocate"
            yield Event(_KINDS[kind], value)


def pack_events(events: Iterable[Event]) -> bytes:
    """Return events as the bytes of a ``Trace``; releases count back, so that steps are alike and compress well."""
    numbers, allocated = array("Q"), 0
    for kind, value in events:
        allocated += kind == "allocate"
        number = allocated - value if kind == "release" else value
        numbers.append(number * len(_KINDS) + _KINDS.index(kind))
    return zlib.compress(numbers.tobytes(), 9)
