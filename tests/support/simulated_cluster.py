"""A simulated cluster instead of Ray's, on a simulated clock: nodes run one job at a time, with given durations and
given times of loss. The code that follows the jobs is the production code."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from support.records import CUDA_CAN
from tputfind.record.environment import Environment
from tputfind.record.record import Record, Row, Timing
from tputfind.runners.jobs import NODE_LOST, End
from tputfind.runners.on_node import ALIVE_S, Request, Word
from tputfind.runners.places import ClusterPlace, Node

RETRIES = 3


def node(number: int, kind: str = "", **resources: float) -> Node:
    return Node(f"{number:04x}", f"10.0.{number // 250}.{number % 250 + 1}", kind, resources or {"GPU": 1, "CPU": 8})


def record_of(request: Request, at: Node, *, torch: str = "2.9.0") -> Record:
    """Return a node's record for a request: one row, with as many samples as a real one."""
    spec = request.spec
    environment = Environment(
        device=spec.device,
        device_name=f"device of {at.kind or 'one kind'}",
        torch=torch,
        python="3.11.7",
        host=at.address,
        cpu_name="CPU",
        cpu_count=8,
        torch_threads=8,
        can=CUDA_CAN,
    )
    timing = Timing(device_ms=(10.0,) * 100, latency_ms=(11.0,) * 100, enqueue_ms=(1.0,) * 100)
    return Record(
        tputfind="1.0",
        command=request.command,
        started="2026-11-25T00:00:00+00:00",
        finished="2026-11-25T00:10:00+00:00",
        spec=spec,
        environment=environment,
        input_shape="3x224x224",
        rows=(Row(batch_size=1, timings=(timing,)),),
    )


class SimulatedCluster:
    """See ``jobs.Executor``. Time passes only during sleeps and waits for the end of a job."""

    def __init__(
        self,
        nodes: Sequence[Node],
        seconds: Callable[[int, Node], float],
        lost_at_s: Mapping[str, float] | None = None,
        answer: Callable[[int, Request, Node], bytes | None] | None = None,
    ) -> None:
        """Args: nodes, duration of a job, time of loss by node, and answer of a node (None for a record)."""
        self.now_s = 0.0
        self.starts: list[tuple[float, int, str]] = []
        self._alive = {each.id: each for each in nodes}
        self._free = deque(self._alive)
        self._seconds = seconds
        self._lost = sorted(((at_s, name) for name, at_s in (lost_at_s or {}).items()), reverse=True)
        self._answer = answer or self._record
        self._waiting: deque[int] = deque()
        self._asked: dict[int, tuple[ClusterPlace, bytes, int]] = {}
        self._running: dict[int, str] = {}
        self._ends: list[tuple[float, int, str]] = []
        self._words: list[bytes] = []
        self._alive_s = 0.0
        self._failed: list[End] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def start(self, number: int, place: ClusterPlace, request: bytes) -> None:
        self._asked[number] = (place, request, 0)
        self._waiting.append(number)

    def poll_ends(self, timeout_s: float) -> Iterable[End]:
        self._place()
        if self._failed:
            ends, self._failed = self._failed, []
            return ends
        next_s = min(
            self._ends[0][0] if self._ends else float("inf"),
            self._lost[-1][0] if self._lost else float("inf"),
            self.now_s + timeout_s,
        )
        self.now_s = max(self.now_s, next_s)
        while self._lost and self._lost[-1][0] <= self.now_s:
            self._lose(self._lost.pop()[1])
        if not self._ends or self._ends[0][0] > self.now_s:
            return []
        _, number, name = heapq.heappop(self._ends)
        if self._running.get(number) != name:
            return []  # its node was lost before
        del self._running[number]
        self._free.append(name)
        _, request, _ = self._asked.pop(number)
        answer = self._answer(number, msgspec.json.decode(request, type=Request), self._alive[name])
        return [End(number, answer, "" if answer is not None else "its process died")]

    def words(self) -> Iterable[bytes]:
        words, self._words = self._words, []
        if self.now_s >= self._alive_s:
            self._alive_s = self.now_s + ALIVE_S
            words += [msgspec.json.encode(Word(number=number, node=name)) for number, name in self.speaking()]
        return words

    def speaking(self) -> Iterable[tuple[int, str]]:
        """Return the jobs that report to be alive, and their nodes."""
        return self._running.items()

    def cancel(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._asked.pop(number, None)
            if number in self._waiting:
                self._waiting.remove(number)
            name = self._running.pop(number, None)
            if name in self._alive:
                self._free.append(name)

    def nodes(self) -> Sequence[Node]:
        return list(self._alive.values())

    def _place(self) -> None:
        """Start waiting jobs in order on free nodes that may run them."""
        left: deque[int] = deque()
        while self._waiting and self._free:
            number = self._waiting.popleft()
            place, request, starts = self._asked[number]
            name = next((each for each in self._free if place.may_be(self._alive[each])), None)
            if name is None:
                left.append(number)
                continue
            self._free.remove(name)
            self._asked[number] = (place, request, starts + 1)
            self._running[number] = name
            self.starts.append((self.now_s, number, name))
            self._words.append(msgspec.json.encode(Word(number=number, node=name, started=True)))
            self._words.append(msgspec.json.encode(Word(number=number, node=name, doing="timing batch 8")))
            heapq.heappush(self._ends, (self.now_s + self._seconds(number, self._alive[name]), number, name))
        self._waiting.extendleft(reversed(left))

    def _lose(self, name: str) -> None:
        del self._alive[name]
        if name in self._free:
            self._free.remove(name)
        for number in [number for number, where in self._running.items() if where == name]:
            del self._running[number]
            if self._asked[number][2] > RETRIES or self._asked[number][0].node is not None:
                del self._asked[number]
                self._failed.append(End(number, None, NODE_LOST))
            else:
                self._waiting.append(number)

    @staticmethod
    def _record(number: int, request: Request, at: Node) -> bytes:
        record = msgspec.Raw(msgspec.json.encode(record_of(request, at)))
        return msgspec.json.encode(Word(number=number, node=at.id, record=record))
