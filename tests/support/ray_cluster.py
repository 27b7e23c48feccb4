"""A Ray cluster on this machine: real nodes with one loopback address each; its end stops all their processes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from support.command import ENVIRONMENT

STORE_BYTES = 80 * 2**20
KIND = "ray.io/accelerator-type"


class RayNodes:
    """A head without CPUs, and nodes with one CPU each, numbered by the last part of their address."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._nodes: dict[int, Any] = {}

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, number: int, kind: str = "", **more: Any) -> None:
        """Start a node, and wait until the cluster includes it."""
        labels = {KIND: kind} if kind else {}
        self._nodes[number] = self._cluster.add_node(
            **{"num_cpus": 1, "num_gpus": 0, **more},
            node_ip_address=f"127.0.0.{number}",
            # Nodes that share a folder each unpack a run's files there, and remove those that another node is using.
            runtime_env_dir_name=f"runtime_resources_{number}",
            object_store_memory=STORE_BYTES,
            labels=labels,
        )

    def lose(self, number: int) -> None:
        """Kill a node and all its processes, like a power cut."""
        node = self._nodes.pop(number)
        running = _list_processes(node)
        self._cluster.remove_node(node, allow_graceful=False)
        _kill(running)

    def running(self, number: int) -> list[psutil.Process]:
        """Return the task processes on a node, and their children."""
        return _list_processes(self._nodes[number])

    def started(self) -> list[psutil.Process]:
        return [one for node in (*self._nodes.values(), self._cluster.head_node) for one in _list_processes(node)]


@contextmanager
def ray_nodes(*kinds: str) -> Iterator[RayNodes]:
    """Start a cluster: a head at 127.0.0.2, and a node of each kind from 127.0.0.3 on."""
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    # Processes on the nodes find the package like the command does.
    os.environ |= {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"], "RAY_USAGE_STATS_ENABLED": "0"}
    cluster = Cluster(shutdown_at_exit=True)
    nodes = RayNodes(cluster)
    try:
        head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        cluster.add_node(node_ip_address="127.0.0.2", **head)
        for number, kind in enumerate(kinds, 3):
            nodes.add(number, kind)
        yield nodes
    finally:
        os.environ.clear()
        os.environ.update(before)
        running = nodes.started()
        cluster.shutdown()
        _kill(running)


def _list_processes(node: Any) -> list[psutil.Process]:
    """Return all processes of a node, itself included: a stopped process does not notice that its node is gone."""
    found: list[psutil.Process] = []
    for processes in node.all_processes.values():
        for info in processes:
            with suppress(psutil.Error):
                process = psutil.Process(info.process.pid)
                found += [process, *process.children(recursive=True)]
    return found


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=10)
