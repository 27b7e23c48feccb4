"""The jobs of a cluster: their starts, messages and results; jobs that would never end are cancelled.

This module does not know Ray, which schedules, places and restarts the jobs: see ``Executor``.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import msgspec

from tputfind.errors import BadRecord, ModelFailed, NoSuchDevice, OutOfTime, TputfindError
from tputfind.record import identity
from tputfind.record.environment import unknown_environment
from tputfind.record.record import FailureKind, Notice, Record, decode_record
from tputfind.record.spec import Spec, apply_findings
from tputfind.record.untrusted import printable_json, wrong_json
from tputfind.runners.on_node import Request, Word
from tputfind.runners.places import ClusterPlace, Node
from tputfind.session.inspect import now
from tputfind.session.outcome import failed_record
from tputfind.session.progress import Progress
from tputfind.version import __version__


def word_of(data: bytes) -> Word:
    """Return the message in a node's bytes; BadRecord if it is invalid."""
    try:
        return msgspec.json.decode(printable_json(data), type=Word)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRecord(f"the answer of a node is none: {wrong_json(error)}") from None


def ran_again(starts: Sequence[str]) -> Iterator[Notice]:
    """Yield a notice if a job was started more than once, at these addresses."""
    if len(starts) > 1:
        yield Notice(
            kind="ran_again",
            seen=f"the job was started {len(starts)} times: on {', '.join(starts)}",
            cause="a node of the cluster was lost, or Ray ended a process there",
            advice="look at the logs of that node before buying more like it",
        )


def unlike(record: Record, first: Record | None) -> Iterator[Notice]:
    """Yield a notice if the software of a node differs from that of the first record."""
    if first is None:
        return
    pairs = [("tputfind", record.tputfind, first.tputfind), ("method", record.method, first.method)]
    names = ("torch", "driver", "cuda", "cudnn", "python")
    pairs += [(name, getattr(record.environment, name), getattr(first.environment, name)) for name in names]
    differing = [
        f"{name} {mine or 'unknown'} here, {other or 'unknown'} there" for name, mine, other in pairs if mine != other
    ]
    if differing:
        yield Notice(
            kind="unlike_nodes",
            seen=f"this node and {first.environment.host}, measured first, differ: {'; '.join(differing)}",
            cause="the nodes of the cluster were not installed alike",
            advice="install the same on all nodes: else a difference of devices may be one of software",
        )


MOST_STARTS: Final = 4
"""Maximum number of starts of a job that ends with its process or its node."""
GRACE_S: Final = 60.0
"""Seconds that a job gets beyond its own ``--budget``, to start and to end."""
SILENT_S: Final = 120.0
"""Seconds without a message from any job after which the started jobs count as lost: each running job reports
regularly."""
GONE_S: Final = 60.0
"""Seconds that a cluster gets to provide a node for a job after the last such node was lost."""
_POLL_S: Final = 0.5
_LOOK_S: Final = 5.0
"""Seconds between two looks at the list of nodes."""
_TELL_S: Final = 2.0
"""Seconds between two progress lines: 200 nodes send more than a terminal can show."""
_LAST_WORDS_S: Final = 2.0
"""Seconds to wait for the last messages of interrupted jobs."""


class End(NamedTuple):
    """The end of a job: its answer, or None and the reason ``why`` there is none, in a few words."""

    number: int
    answer: bytes | None
    why: str = ""


class Executor(Protocol):
    """Runs jobs, identified by their numbers, on the nodes of a cluster."""

    def start(self, number: int, place: ClusterPlace, request: bytes) -> None:
        """Run a job when there is room; restart it a limited number of times if its node is lost."""

    def poll_ends(self, timeout_s: float) -> Iterable[End]:
        """Return the jobs that have ended since the last call; wait up to ``timeout_s`` seconds for the first."""

    def words(self) -> Iterable[bytes]:
        """Return the messages of jobs since the last call, each a ``Word`` as JSON."""

    def cancel(self, numbers: Iterable[int]) -> None:
        """End jobs; ``poll_ends`` does not return them."""

    def nodes(self) -> Sequence[Node]:
        """Return the nodes of the cluster at this moment."""


class ClusterJob(NamedTuple):
    """A spec at a place. ``sent`` is the spec for the node, with the paths of the model's files there."""

    spec: Spec
    sent: Spec
    place: ClusterPlace


class Came(NamedTuple):
    """The result of a job: its record, ``whole`` if a node made it, and the error that ended it early."""

    number: int
    record: Record
    whole: bool
    ended_by: TputfindError | KeyboardInterrupt | None = None


class _State(msgspec.Struct):
    """A job under way: the nodes of its starts, the time of the latest, and its latest record."""

    starts: list[str] = []
    node: str = ""
    started_s: float = 0.0
    record: bytes | None = None
    homeless_since_s: float | None = None


class Jobs:
    """Follows jobs until the last has ended."""

    def __init__(
        self,
        jobs: Mapping[int, ClusterJob],
        executor: Executor,
        progress: Progress,
        command: str,
        *,
        trust_model_file: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take jobs by number, and the ``command`` for the records; ``clock`` and ``sleep`` may be a simulation's."""
        self._jobs = jobs
        self._total = max(jobs, default=0) + 1
        self._executor = executor
        self._progress = progress
        self._command = command
        self._trust_model_file = trust_model_file
        self._clock = clock
        self._sleep = sleep
        self._open = {number: _State() for number in jobs}
        self._addresses: dict[str, str] = {}
        self._alive: list[Node] = []
        self._first: Record | None = None
        self._look_s = self._tell_s = 0.0
        self._moved_s = self._heard_s = 0.0
        self._hung = False

    def follow(self) -> Iterator[Came]:
        """Start the jobs, and yield the result of each as it ends; an interruption also yields partial records.

        KeyboardInterrupt if the run was interrupted, and no result is left to yield.
        """
        try:
            self._look()
            for number, job in self._jobs.items():
                request = Request(spec=job.sent, command=self._command, trust_model_file=self._trust_model_file)
                self._executor.start(number, job.place, msgspec.json.encode(request))
            while self._open:
                ends = list(self._executor.poll_ends(_POLL_S))
                self._hear()
                yield from (self._came(end, self._open.pop(end.number)) for end in ends if end.number in self._open)
                if self._clock() >= self._look_s:
                    self._look()
                    yield from self._give_up()
        except KeyboardInterrupt as interruption:
            partial = list(self._cancel_jobs(interruption))
            if not partial:
                raise
            yield from partial

    def _look(self) -> None:
        self._look_s = self._clock() + _LOOK_S
        nodes = list(self._executor.nodes())
        ids = {node.id for node in nodes}
        for lost in (node for node in self._alive if node.id not in ids):
            self._say(f"node {lost.address}", "was lost: what ran there runs again elsewhere")
        self._alive = nodes
        self._addresses |= {node.id: node.address for node in nodes}

    def _hear(self) -> None:
        """Read the messages of the jobs; invalid ones are ignored, since they are progress and not results."""
        for line in self._executor.words():
            try:
                word = word_of(line)
            except BadRecord:
                continue
            state = self._open.get(word.number)
            if state is None:
                continue
            self._heard_s = self._clock()
            if word.started:
                self._record_start(word, state)
            elif word.record is not msgspec.UNSET:
                state.record = bytes(word.record)
            elif word.doing and self._clock() >= self._tell_s:
                self._tell_s = self._clock() + _TELL_S
                self._progress.about(self._subject(word.number, state))
                self._progress.doing(word.doing, word.seconds_left)

    def _record_start(self, word: Word, state: _State) -> None:
        if word.node not in self._addresses:
            self._look()
        what = "starts"
        if state.starts:
            lost = f"its process on {state.starts[-1]}" if self._is_node_there(state) else state.starts[-1]
            what = f"starts again: {lost} was lost"
        state.starts.append(self._addresses.get(word.node, "unknown"))
        self._moved_s = state.started_s = self._clock()
        state.node = word.node
        state.record = None
        self._say(self._subject(word.number, state), what)

    def _give_up(self) -> Iterator[Came]:
        """Cancel and yield the jobs that would never end by themselves."""
        now_s = self._clock()
        for number, state in list(self._open.items()):
            reason = self._reason_to_give_up(number, state, now_s)
            if reason is not None:
                self._executor.cancel([number])
                hangs = bool(state.starts) and isinstance(reason, OutOfTime)
                if hangs:
                    self._hung, self._moved_s = True, now_s  # the device that it holds on its node may never be freed
                yield self._failed_result(number, self._open.pop(number), reason, "timeout" if hangs else "died")

    def _reason_to_give_up(self, number: int, state: _State, now_s: float) -> TputfindError | None:
        job = self._jobs[number]
        budget_s = job.spec.budget_s
        there = self._is_node_there(state)  # else it waits for its restart
        if there and budget_s is not None and now_s > state.started_s + budget_s + GRACE_S:
            what = f"no answer from {state.starts[-1]} within --budget and {GRACE_S:g} s more"
            return OutOfTime(f"{_job_name(job)}: {what}", _SEE)
        if there and now_s > self._heard_s + SILENT_S:
            return OutOfTime(f"{_job_name(job)}: no word from {state.starts[-1]} for {SILENT_S:g} s", _SEE)
        none_runs = not any(one.starts for one in self._open.values())
        if self._hung and none_runs and now_s > self._moved_s + GRACE_S:
            what = "no device came free behind a job that never came back"
            return OutOfTime(f"{_job_name(job)}: {what}", _GO_ON)
        if len(state.starts) > MOST_STARTS:
            return ModelFailed(
                f"{_job_name(job)}: ended {MOST_STARTS} times with its process: {', '.join(state.starts)}"
            )
        if any(job.place.may_be(node) for node in self._alive):
            state.homeless_since_s = None
        elif state.homeless_since_s is None:
            state.homeless_since_s = now_s
        elif now_s > state.homeless_since_s + GONE_S:
            return NoSuchDevice(f"{_job_name(job)}: the nodes where it could run were lost", _GO_ON)
        return None

    def _cancel_jobs(self, interruption: KeyboardInterrupt) -> Iterator[Came]:
        """Yield the jobs that have ended, cancel the open ones, and yield their partial records."""
        with suppress(KeyboardInterrupt):  # a second interruption: the user is in a hurry
            while ends := [end for end in self._executor.poll_ends(0.0) if end.number in self._open]:
                for end in ends:
                    yield self._came(end, self._open.pop(end.number))
        self._executor.cancel(list(self._open))
        until_s = self._clock() + _LAST_WORDS_S
        while self._clock() < until_s:
            self._sleep(_POLL_S / 5)
            self._hear()
        for number, state in self._open.items():
            record = self._partial_record(number, state)
            if record is not None:
                yield Came(number, record, whole=True, ended_by=interruption)

    def _came(self, end: End, state: _State) -> Came:
        number = end.number
        self._moved_s = self._heard_s = self._clock()
        if end.answer is None:
            where = f" on {state.starts[-1]}" if state.starts else ""
            kind = _ENDED_BY.get(end.why, ModelFailed)
            ended_by = kind(f"{_job_name(self._jobs[number])}: {end.why}{where}", _GO_ON)
            return self._failed_result(number, state, ended_by, "died")
        try:
            word = word_of(end.answer)
            error = None if word.refusal is None else word.refusal.make_error()
            if error is not None and word.record is msgspec.UNSET:
                return self._failed_result(number, state, error)
            record = self._check_record(number, b"" if word.record is msgspec.UNSET else bytes(word.record), state)
        except BadRecord as wrong:
            return self._failed_result(number, state, wrong)
        if error is not None and self._total > 1 and not record.rows:
            record = failed_record(record, error)
        if error is None and record.finished is None:
            error = ModelFailed(f"{_job_name(self._jobs[number])}: it was cut short on {state.starts[-1]}", _GO_ON)
        self._first = self._first or record
        self._say(self._subject(number, state), "is done" if error is None else "has failed")
        return Came(number, record, whole=True, ended_by=error)

    def _check_record(self, number: int, data: bytes, state: _State) -> Record:
        """Return a record from a node, with notices about the node."""
        job = self._jobs[number]
        address = state.starts[-1] if state.starts else "unknown"
        record = decode_record(data, f"the record from {address}")
        sent = apply_findings(job.sent, record.spec)
        if record.spec != sent:
            names = [name for name in Spec.__struct_fields__ if getattr(record.spec, name) != getattr(sent, name)]
            raise BadRecord(
                f"{_job_name(job)}: the record from {address} does not match the request: {', '.join(names)}",
                f"install tputfind {__version__} there",
            )
        caveats = (*record.caveats, *ran_again(state.starts), *unlike(record, self._first))
        return msgspec.structs.replace(
            record,
            spec=apply_findings(job.spec, record.spec),
            command=identity.placed_command(self._command, job.place.kind, address),
            caveats=caveats,
            notices=(*record.notices, *caveats[len(record.caveats) :]),
        )

    def _partial_record(self, number: int, state: _State) -> Record | None:
        """Return the latest record of an open job; None if its node sent none that is valid."""
        if state.record is None:
            return None
        try:
            return self._check_record(number, state.record, state)
        except BadRecord:
            return None

    def _failed_result(self, number: int, state: _State, error: TputfindError, kind: FailureKind | None = None) -> Came:
        """Return a failed result with the trials and rows that the node has sent.

        Without any, the record has one failed row, or no row if it is the only job.
        """
        job = self._jobs[number]
        self._say(self._subject(number, state), f"has failed: {error.message}")
        partial = self._partial_record(number, state)
        if partial is not None and (partial.rows or partial.trials):
            return Came(number, partial, whole=True, ended_by=error)
        address = state.starts[-1] if state.starts else ""
        record = Record(
            tputfind=__version__,
            command=identity.placed_command(self._command, job.place.kind, address or "unknown"),
            started=now(),
            spec=job.spec,
            environment=unknown_environment(job.place.device, job.place.kind or job.place.resource, address),
            input_shape="",
            caveats=tuple(ran_again(state.starts)),
        )
        record = failed_record(record, error, kind) if self._total > 1 else record
        return Came(number, record, whole=False, ended_by=error)

    def _is_node_there(self, state: _State) -> bool:
        """Whether the node of the job's latest start is still there."""
        return any(node.id == state.node for node in self._alive)

    def _subject(self, number: int, state: _State) -> str:
        place = f" on {state.starts[-1]}" if state.starts else ""
        return f"{number + 1}/{self._total} {_job_name(self._jobs[number])}{place}"

    def _say(self, subject: str, what: str) -> None:
        self._progress.about(subject)
        self._progress.did(what)


_GO_ON: Final = "--resume FOLDER measures what is missing"
_SEE: Final = "see what the node is doing"
NODE_LOST: Final = "its node was lost"
PROCESS_DIED: Final = "its process died"
OUT_OF_MEMORY: Final = "Ray ended it, since the node was short of memory"
_ENDED_BY: Final[dict[str, type[TputfindError]]] = {NODE_LOST: NoSuchDevice}


def _job_name(job: ClusterJob) -> str:
    device = f" {job.place.device}" if job.place.node is not None else ""
    kind = f" ({job.place.kind})" if job.place.kind is not None else ""
    return f"{job.spec.model} {identity.name_of(job.spec)}{device}{kind}"
