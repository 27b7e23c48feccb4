"""The devices of this host in a list: how processes see each device, and which cores they run on."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from tputfind.errors import BadRequest, NoSuchDevice
from tputfind.processes import cores
from tputfind.processes.children import ONLY_DEVICE, Children
from tputfind.record.environment import Environment
from tputfind.record.spec import read_spec
from tputfind.session import health

ALL: Final = "all"
_RANGE: Final = re.compile(r"(?!cpu)([a-z]+):([0-9]{1,3})-(?:\1:)?([0-9]{1,3})")
_CORE_SETS: Final = "--device cpu:0-3,cpu:4-7 names sets of cores"
_LISTS: Final = "tputfind devices lists what is here"


class HostPlace(NamedTuple):
    """A device to measure on, by its name in the list, and the settings that keep its processes to it.

    ``variables`` are added to the environment of its processes; ``cores`` are those that they may run on, None for all.
    ``kind`` is what equal devices have in common: the name of an accelerator, or the number of cores.
    """

    name: str
    variables: Mapping[str, str] = {}
    cores: frozenset[int] | None = None
    kind: str = ""


def is_list(device: str | None) -> bool:
    """Whether a text names, or may name, more than one device."""
    return device is not None and (
        device.strip().lower() == ALL or "," in device or bool(_RANGE.fullmatch(_lower(device)))
    )


def places_of(device: str, children: Children) -> list[HostPlace]:
    """Return the places in a list such as ``cuda:0,cuda:2-5``, in its order; ``all`` means all accelerators.

    BadRequest if it is not a list of devices; NoSuchDevice if a device is not here, or its driver hangs.
    """
    here = {one.device: one for one in children.list_devices() if not cores.is_host(one.device)}
    named = names(device) or list(here)
    if not named:
        raise NoSuchDevice("--device all: there is no accelerator here", _CORE_SETS)
    own: dict[str, frozenset[int] | None] = {}
    for name in [one for one in named if one not in here]:
        if not cores.is_host(name):
            raise NoSuchDevice(f"there is no {name} here: torch sees {', '.join(here) or 'no accelerator'}", _LISTS)
        own[name] = cores.device_cores(name)
    near = _cores_near(here[name] for name in named if name in here)
    return [
        HostPlace(name, _alone(here[name], len(here)), near[name], here[name].device_name)
        if name in here
        else HostPlace(name, cores=own[name], kind=f"cores of a CPU ({len(own[name] or cores.here())})")
        for name in named
    ]


def overlaps(places: Sequence[HostPlace]) -> Iterator[str]:
    """Yield a warning for every pair of places that share cores of the host on which they compute."""
    sets = [
        (place.name, cores.device_cores(place.name) or cores.here()) for place in places if cores.is_host(place.name)
    ]
    for (one, ours), (other, theirs) in combinations(sets, 2):
        if shared := ours & theirs:
            yield f"{one} and {other} share core {cores.text(shared)}: they slow each other down"


def names(device: str) -> list[str]:
    """Return the names in a list of devices, without duplicates; empty for ``all``. BadRequest if it is not a list."""
    found = [] if _lower(device) == ALL else list(dict.fromkeys(_names(device)))
    for name in found:
        read_spec("any", {"device": name})
    return found


def check_recipes(model: str, recipes: Iterable[Mapping[str, object]], device: str) -> None:
    """Raise BadRequest if a device of a list does not take a recipe, such as more instances than cores."""
    found = names(device)
    for recipe in recipes:
        for name in found:
            read_spec(model, {**recipe, "device": name})


def _names(device: str) -> Iterator[str]:
    """Yield the name of each device in a list; ``cuda`` is its first device."""
    for part in filter(None, _lower(device).split(",")):
        numbers = _RANGE.fullmatch(part)
        if numbers is None:
            if part in ("auto", ALL):
                raise BadRequest(f"--device {device}: {part} cannot stand in a list", _LISTS)
            yield f"{part}:0" if part.isalpha() and part != "cpu" else part
            continue
        low, high = int(numbers[2]), int(numbers[3])
        if low > high:
            raise BadRequest(f"--device {device}: {part} counts down", f"write {numbers[1]}:{high}-{low}")
        yield from (f"{numbers[1]}:{number}" for number in range(low, high + 1))


def _alone(environment: Environment, count: int) -> dict[str, str]:
    """Return the environment variables that restrict a process to one of several devices."""
    kind, uuid = environment.device.partition(":")[0], environment.device_uuid
    if count < 2 or kind != "cuda" or uuid is None:
        return {}
    return {"CUDA_VISIBLE_DEVICES": uuid, ONLY_DEVICE: f"{kind}:0"}


def _cores_near(accelerators: Iterable[Environment]) -> dict[str, frozenset[int]]:
    """Return the cores near each device; devices that are near to the same cores divide them."""
    near = {one.device: health.cores_near(one.device_uuid) & cores.here() or cores.here() for one in accelerators}
    shared: dict[str, frozenset[int]] = {}
    for same in set(near.values()):
        beside = [name for name, theirs in near.items() if theirs == same]
        shared |= zip(beside, cores.split(same, len(beside)), strict=True)
    return shared


def _lower(device: str) -> str:
    return "".join(device.lower().split())
