"""The places of jobs in a cluster: Ray's resources for it, computed from the available nodes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from tputfind.errors import BadRequest, NoSuchDevice
from tputfind.record import identity
from tputfind.record.record import Record
from tputfind.record.spec import Spec, apply_findings

Choice = Literal["next", "kinds", "each"]
"""A job runs on the ``next`` free device, once on each of the ``kinds`` of accelerators, or on ``each`` device."""
KIND: Final = "ray.io/accelerator-type"
"""The node label for the kind of accelerator; Ray sets it, and ``ray start --labels`` can."""
_RESOURCES: Final = {"cuda": "GPU", "xpu": "GPU"}
"""Ray's names for devices that torch names otherwise; other devices have the same name in capitals (NPU, HPU, CPU)."""
_INTEL: Final = "Intel-GPU"
"""Beginning of the kind of Intel's GPUs, which torch calls xpu."""
HOST: Final = "CPU"
"""The resource that stands for a whole node: its count is not a number of devices."""
_LISTS: Final = "tputfind devices --ray lists what the cluster has"


class Node(NamedTuple):
    """A node of the cluster: Ray's id of it, its address, the kind of its accelerators, and its resources."""

    id: str
    address: str
    kind: str
    resources: Mapping[str, float]


class ClusterPlace(NamedTuple):
    """A request to Ray: an amount of a resource, on any node, on nodes of a kind, or on one node.

    ``device`` is the name of the device on the node. A job of ``--each`` takes all devices of its node and uses one of
    them: each device is then measured exactly once, without other Ray jobs on the node.
    """

    device: str
    resource: str
    amount: int
    kind: str | None = None
    node: Node | None = None

    def may_be(self, node: Node) -> bool:
        """Whether the job could run on a node if the node were free."""
        return (
            node.resources.get(self.resource, 0) >= self.amount
            and self.kind in (None, node.kind)
            and (self.node is None or self.node.id == node.id)
        )

    def most_on_one(self, nodes: Sequence[Node]) -> int:
        """Return the maximum number of such jobs at once on one node."""
        return max(int(node.resources[self.resource]) // self.amount for node in nodes if self.may_be(node))


def devices_of(node: Node) -> dict[str, int]:
    """Return the number of a node's devices by Ray's resource name, the CPU last; other resources are left out."""
    counts = {name: int(node.resources.get(name, 0)) for name in ("GPU", "NPU", "HPU", "TPU", "neuron_cores", "CPU")}
    return {name: count for name, count in counts.items() if count}


def resource_of(device: str) -> str:
    return _RESOURCES.get(device, device.upper())


def places_of(nodes: Sequence[Node], device: str, choice: Choice, ranks: int = 1) -> list[ClusterPlace]:
    """Return the places for each spec, which takes one device for each of its ``ranks``.

    BadRequest if only a host can choose the device, or ``each`` is combined with several ranks; NoSuchDevice if no node
    has such a device, or enough of them, or the kinds of all nodes are unknown.
    """
    if choice == "each" and ranks > 1:
        raise BadRequest("--each measures every device by itself: leave --gpus and --parallel out")
    kind, _, number = device.partition(":")
    if number or "," in kind:
        name = kind.partition(",")[0]
        raise BadRequest(f"--device {device}: with --ray, Ray chooses the device", f"name its kind: --device {name}")
    if device == "auto":
        device = next((name for name in ("cuda", "xpu", "npu", "hpu") if _nodes_with(nodes, name)), "cpu")
    having = _nodes_with(nodes, device)
    if not having:
        what = f"{resource_of(device)} for --device {device}"
        raise NoSuchDevice(f"none of the {len(nodes)} nodes of the cluster has a {what}", _LISTS)
    if resource_of(device) != HOST and not (having := _nodes_with(nodes, device, ranks)):
        what = f"no node of the cluster has {ranks} {resource_of(device)}"
        raise NoSuchDevice(f"{what}: the ranks of one model run on one node", _LISTS)
    if choice == "each":
        return [place for node in having for place in _places_on_node(node, device)]
    if choice == "next":
        return [_place(having, device, ranks)]
    kinds = sorted({node.kind for node in having} - {""})
    if not kinds:
        raise NoSuchDevice(f"--kinds: no node says of which kind it is: none has the label {KIND}", _LISTS)
    return [_place([node for node in having if node.kind == kind], device, ranks, kind) for kind in kinds]


def _nodes_with(nodes: Sequence[Node], device: str, count: int = 1) -> list[Node]:
    having = [node for node in nodes if node.resources.get(resource_of(device), 0) >= count]
    if device not in _RESOURCES:
        return having
    return [node for node in having if not node.kind or node.kind.startswith(_INTEL) == (device == "xpu")]


def _place(nodes: Sequence[Node], device: str, ranks: int, kind: str | None = None) -> ClusterPlace:
    """Return a place with one device per rank on any of these nodes; a CPU is a whole node, for one job only."""
    resource = resource_of(device)
    count = max(int(node.resources[resource]) for node in nodes) if resource == HOST else ranks
    return ClusterPlace(device, resource, count, kind)


def _places_on_node(node: Node, device: str) -> Iterator[ClusterPlace]:
    resource = resource_of(device)
    count = int(node.resources[resource])
    names = [device] if resource == HOST else [f"{device}:{number}" for number in range(count)]
    yield from (ClusterPlace(name, resource, count, node=node) for name in names)


def left_out(nodes: Sequence[Node], places: Sequence[ClusterPlace]) -> list[Node]:
    """Return the nodes that have the resource but can run no job: too small, or of an unknown kind."""
    having = [node for node in nodes if node.resources.get(places[0].resource, 0) >= 1]
    return [node for node in having if not any(place.may_be(node) for place in places)]


def answers(record: Record, spec: Spec, place: ClusterPlace) -> bool:
    """Whether a record is of this spec at this place.

    The number of busy devices may differ, and so may what a record finds out about the model or may be resumed with.
    """
    kind, node = identity.place_of(record)
    asked = msgspec.structs.replace(spec, load=record.spec.load, busy_devices=record.spec.busy_devices)
    return (
        not any(identity.differing(record.spec, apply_findings(asked, record.spec), "work", "told", "asked"))
        and node != ""
        and place.kind in (None, kind)
        and (place.node is None or place.node.address == node)
    )
