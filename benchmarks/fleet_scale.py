"""Follow 1000 jobs on 200 nodes of a simulated cluster: the cost of the driver, and of lost nodes.

    PYTHONPATH=tests python benchmarks/fleet_scale.py

The code that follows the jobs is that of ``tputfind --ray``. A queue on a simulated clock replaces Ray: it starts the
first waiting job on the first free node, and starts it again if its node is lost. The figures therefore exclude Ray's
own work. Every job returns a real record of a whole run of ResNet-50 on an H200. Job durations have a median of 10
minutes, and a tenth of them exceed 25 (log-normal); they are the same in each line.

Writes ``results/simulated/fleet/scale.csv``, and prints it; ``--to FILE`` writes elsewhere.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
from support.simulated_cluster import SimulatedCluster, node

from tputfind import load_record
from tputfind.record.record import Record
from tputfind.runners.jobs import ClusterJob, Jobs
from tputfind.runners.on_node import Request, Word
from tputfind.runners.places import Node, places_of
from tputfind.session.progress import Silent

RESULTS = Path(__file__).parents[1] / "results"
RECORD = RESULTS / "nvidia-h200" / "default" / "resnet50-fp16.json"
MEDIAN_S, SIGMA = 600.0, 0.7
LOST_AT_S = 1500.0
"""Half-way, when all nodes are busy."""


def main() -> None:
    """Follow the jobs with no node lost, with one, and with ten; and fewer jobs and nodes, for comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=RESULTS / "simulated" / "fleet" / "scale.csv")
    to = parser.parse_args().to
    cases = [(1000, 200, 0), (1000, 200, 1), (1000, 200, 10), (100, 200, 0), (100, 20, 0), (1000, 20, 0)]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # separate peak memory
        rows = pool.map(followed, cases, chunksize=1)
    table = pd.DataFrame(rows)
    to.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(to, index=False)
    print(table.to_string(index=False))


def followed(case: tuple[int, int, int]) -> dict[str, Any]:
    """Return the figures of following a number of jobs on a number of nodes, of which some are lost."""
    count, node_count, lost = case
    made = load_record(RECORD)
    nodes = [node(number, "H100") for number in range(node_count)]
    draw = random.Random(0)
    seconds = [draw.lognormvariate(0, SIGMA) * MEDIAN_S for _ in range(count)]
    lost_at_s = {each.id: LOST_AT_S for each in nodes[:lost]}
    node_side = NodeSide(made)
    cluster = SimulatedCluster(nodes, lambda number, _: seconds[number], lost_at_s, node_side.answer)
    (place,) = places_of(nodes, "cuda", "next")
    specs = [msgspec.structs.replace(made.spec, device="cuda", seed=number) for number in range(count)]
    jobs = {number: ClusterJob(spec, spec, place) for number, spec in enumerate(specs)}
    before_mib, cpu_s = _peak_mib(), time.process_time()
    came = list(_came(Jobs(jobs, cluster, Silent(), "tputfind ... --ray", clock=cluster.clock)))
    cpu_s = time.process_time() - cpu_s - node_side.cpu_s
    order = [number for number, _, _ in came]
    starts = [number for _, number, _ in cluster.starts]
    return {
        "jobs": count,
        "nodes": node_count,
        "lost": lost,
        "came back": sum(error is None for _, _, error in came),
        "started again": len(starts) - len(set(starts)),
        "work done again min": round(_lost_s(cluster.starts) / 60, 1),
        "whole run min": round(cluster.now_s / 60, 1),
        "at best min": round(max(sum(seconds) / node_count, *seconds) / 60, 1),
        "driver CPU s": round(cpu_s, 2),
        "driver CPU share %": round(100 * cpu_s / cluster.now_s, 3),
        "driver memory MiB": round(_peak_mib() - before_mib),
        "record KiB": round(len(msgspec.json.encode(made)) / 1024),
        "furthest from its place": max(abs(place - number) for place, number in enumerate(order)),
    }


def _came(jobs: Jobs) -> Iterator[tuple[int, Record, object]]:
    """Yield number, record and error of each job; the caller keeps them, as the command does for its merged table."""
    for each in jobs.follow():
        yield each.number, each.record, each.ended_by


class NodeSide:
    """Makes the answers of nodes, and counts their CPU time, which is not the driver's."""

    def __init__(self, made: Record) -> None:
        self._made = made
        self.cpu_s = 0.0

    def answer(self, number: int, request: Request, at: Node) -> bytes:
        """Return the encoded record that answers a request."""
        start_s = time.process_time()
        record = msgspec.structs.replace(self._made, spec=request.spec, command=request.command)
        word = Word(number=number, node=at.id, record=msgspec.Raw(msgspec.json.encode(record)))
        data = msgspec.json.encode(word)
        self.cpu_s += time.process_time() - start_s
        return data


def _lost_s(starts: list[tuple[float, int, str]]) -> float:
    """Return the seconds of work that were lost with nodes."""
    counts = Counter(number for _, number, _ in starts)
    first_s = {number: at_s for at_s, number, _ in reversed(starts)}
    return sum(LOST_AT_S - first_s[number] for number, count in counts.items() if count > 1)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
