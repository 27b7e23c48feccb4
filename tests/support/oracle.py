"""Searches for an edge that arithmetic knows."""

from tputfind.record.record import Edge
from tputfind.search.edge import find_edge

NO_CAP = 2**31 - 1


class Oracle:
    """Answers by arithmetic, and records the questions."""

    def __init__(self, edge: int, obstacle: str = "memory") -> None:
        self.edge = edge
        self.obstacle = obstacle
        self.asked: list[int] = []

    def __call__(self, batch_size: int):
        self.asked.append(batch_size)
        return None if batch_size <= self.edge else self.obstacle


def searched(edge: int, obstacle: str = "memory", **options) -> tuple[Edge, list[int]]:
    """Return the answer of a search, by default of any batch size, and the batch sizes that it tried in order."""
    ask = Oracle(edge, obstacle)
    found = find_edge(ask, Oracle(edge), **{"granularity": 1, "max_batch": NO_CAP, **options})
    return found, ask.asked
