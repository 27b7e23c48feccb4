"""`tputfind devices`: list the devices of this host or of a Ray cluster."""

from tputfind.commands.console import Given, print_columns
from tputfind.processes.children import Children
from tputfind.record.environment import Environment
from tputfind.runners.cluster import list_nodes
from tputfind.runners.places import devices_of
from tputfind.units import format_bytes


def main(given: Given, *, show_traceback: bool) -> int:  # noqa: ARG001  # as every command is called
    if given["ray"] is not None:
        nodes = []
        for node in list_nodes(given["ray"]):
            devices = ", ".join(f"{count} {name}" for name, count in devices_of(node).items())
            nodes.append((node.address, node.kind, devices, format_bytes(int(node.resources.get("memory", 0)))))
        print_columns(("node", "kind", "devices", "host memory"), nodes)
        return 0
    with Children() as children:
        found = children.list_devices()
    print_columns(("device", "name", "memory", "free"), [_cells(device) for device in found])
    return 0


def _cells(device: Environment) -> tuple[str, ...]:
    memory = (device.memory_total_bytes, device.memory_free_bytes)
    return device.device, device.device_name, *("" if count is None else format_bytes(count) for count in memory)
