"""The same jobs on a cluster: Ray runs each on a device of a node, starts it again where a node is lost, and no more.

What comes back is bytes, as they are: Ray unpickles other values, and errors, on the driver, which this one never asks
it to. So no node, and no model, has code run here.
"""

import ast
import logging
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tputfind.errors import BadRequest, TputfindError
from tputfind.processes import signals
from tputfind.processes.messages import Inspection
from tputfind.record import files
from tputfind.record.record import Record
from tputfind.record.spec import Spec
from tputfind.record.types import METHOD
from tputfind.runners import task
from tputfind.runners.jobs import MOST_STARTS, NODE_LOST, OUT_OF_MEMORY, PROCESS_DIED, Came, ClusterJob, End, Jobs
from tputfind.runners.places import HOST, KIND, Choice, ClusterPlace, Node, answers, left_out, places_of
from tputfind.runners.sweep import Job, in_queue
from tputfind.session.inspect import record_file_of
from tputfind.session.outcome import error_of
from tputfind.session.progress import Progress
from tputfind.session.resume import check_file
from tputfind.session.run import Measured

_CONNECT_S: Final = 5.0
_ENDS: Final = {
    "NODE_DIED": NODE_LOST,
    "LOCAL_RAYLET_DIED": NODE_LOST,
    "TASK_UNSCHEDULABLE_ERROR": NODE_LOST,
    "WORKER_DIED": PROCESS_DIED,
    "OUT_OF_MEMORY": OUT_OF_MEMORY,
    "RUNTIME_ENV_SETUP_FAILED": "the model's files could not be unpacked",
}
"""Words for what Ray says became of a task; for others its own."""


class Cluster(NamedTuple):
    """Which cluster, which of its devices, and the folder whose records need not be measured again, None for none."""

    address: str
    choice: Choice = "next"
    resumed: Path | None = None
    trust_model_file: bool = False


def sweep(job: Job, cluster: Cluster, progress: Progress) -> Iterator[Measured]:
    """Yield what becomes of each spec at each place, as it comes: those that were measured before come first.

    Raises:
        TputfindError: there is no such cluster, or none of its nodes has such a device.
        KeyboardInterrupt: nothing is left to yield.
    """
    with tempfile.TemporaryDirectory() as folder:
        sent = [packed(spec, Path(folder)) for spec in job.specs]
        files_to_send = folder if any(Path(folder).iterdir()) else None
        with _connected(cluster.address, files_to_send) as ray:
            executor = RayExecutor(ray)
            nodes = executor.nodes()
            places = places_of(nodes, job.specs[0].device, cluster.choice, job.specs[0].device_count)
            _tell_left_out(nodes, places, progress)
            jobs = [
                ClusterJob(_at(spec, place, busy), _at(there, place, busy), place)
                for spec, there in zip(job.specs, sent, strict=True)
                for place in places
                for busy in [min(len(job.specs), place.most_on_one(nodes))]
            ]
            begun = _begun(jobs, cluster.resumed)
            done = [number for number, (record, _) in begun.items() if record.finished is not None]
            for number in done:
                record, path = begun[number]
                progress.about(f"{number + 1}/{len(jobs)} {path}")
                progress.did("is finished")
                yield Measured(record, files.RecordFile.at(path if job.folder else None), error_of(record))
            missing = {number: one for number, one in enumerate(jobs) if number not in done}
            following = Jobs(missing, executor, progress, job.command, trust_model_file=cluster.trust_model_file)
            with signals.handled_by(executor.interrupt):  # none comes between an answer and its file
                for came in following.follow():
                    file = _file_of(job.folder, came, begun.get(came.number))
                    if came.whole:
                        file.save(came.record)
                    yield Measured(came.record, file, came.ended_by)


def list_nodes(address: str) -> list[Node]:
    """Return the nodes of a cluster; errors as for ``sweep``."""
    with _connected(address, None) as ray:
        return sorted(RayExecutor(ray, board=False).nodes(), key=lambda node: node.address)


def _at(spec: Spec, place: ClusterPlace, busy: int) -> Spec:
    """Return a spec at a place where so many devices of a node may be busy with such jobs."""
    return msgspec.structs.replace(in_queue(spec, busy), device=place.device)


def _tell_left_out(nodes: Sequence[Node], places: Sequence[ClusterPlace], progress: Progress) -> None:
    unused = left_out(nodes, places)
    if unused:
        progress.about("cluster")
        addresses = ", ".join(node.address for node in unused)
        progress.did(f"no job runs on {addresses}: smaller than others, or without the label {KIND}; --each takes all")


def _file_of(folder: Path | None, came: Came, begun: tuple[Record, Path] | None) -> files.RecordFile:
    """Return the file for what came of a job: that of the record which it goes on from, unless that holds more."""
    record = came.record
    if folder is not None and begun is not None:
        before, path = begun
        less = not came.whole or (came.ended_by is not None and len(record.rows) < len(before.rows))
        return files.RecordFile.at(None if less else path)
    looked_at = Inspection(environment=record.environment, input_shape=record.input_shape, parameters=record.parameters)
    return record_file_of(folder, record.spec, looked_at)


def _begun(jobs: Sequence[ClusterJob], folder: Path | None) -> dict[int, tuple[Record, Path]]:
    """Return the records in a folder that are of these jobs, finished or cut short, by the number of the job.

    Raises:
        BadRecord: the file of its model was changed since.
    """
    found: dict[int, tuple[Record, Path]] = {}
    for path in sorted(folder.glob("*.json")) if folder else ():
        try:
            record = files.load_record(path)
        except TputfindError:  # of another command, or no record: nothing that could be gone on with
            continue
        if record.method != METHOD:
            continue
        number = next(
            (
                number
                for number, one in enumerate(jobs)
                if answers(record, one.spec, one.place) and (number not in found or found[number][0].finished is None)
            ),
            None,
        )
        if number is not None:
            check_file(record)
            found[number] = record, path
    return found


@contextmanager
def _connected(address: str, folder: str | None) -> Iterator[Any]:
    """Give Ray, connected to a cluster that has the files of a folder; whatever runs is ended with the connection.

    Raises:
        BadRequest: Ray is not installed, or no cluster is there.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise BadRequest("--ray needs Ray, which is not installed", "pip install 'tputfind[ray]'") from None
    address = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    address = _checked_address(_found_here(ray) if address == "auto" else address)
    environment = {} if folder is None else {"working_dir": folder}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it prints what later versions will do
    try:
        with signals.restored():  # Ray takes some of them, in Python and in its library
            ray.init(address=address, runtime_env=environment, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:  # of many kinds: no cluster, another version of it, files too large to travel
        said = f"{error}".strip().split("\n")[0]
        where = "there is no Ray cluster here" if address == "auto" else f"cannot join the Ray cluster at {address}"
        raise BadRequest(f"--ray: {where}: {said}", _START) from None
    try:
        yield ray
    finally:
        ray.shutdown()


_START: Final = "on its first node: ray start --head; on the others: ray start --address HOST:PORT"


def _found_here(ray: Any) -> str:
    """Return the address that Ray would join by itself. It keeps that of a cluster that was killed."""
    try:
        return str(ray._private.services.get_ray_address_from_environment("auto", None))  # noqa: SLF001  # no other tells
    except Exception:  # there is none, which Ray says itself; or a version of Ray that finds it otherwise
        return "auto"


def _checked_address(address: str) -> str:
    """Return an address where something answers: Ray itself would wait for a minute.

    Raises:
        BadRequest: it is none, or nothing answers.
    """
    if address == "auto":
        return address
    if address.startswith("ray://"):
        raise BadRequest(f"--ray {address}: Ray Client cannot do it", "run tputfind on a node of the cluster: --ray")
    found = re.fullmatch(r"\[?([^\[\]]+)\]?:(\d{1,5})", address)
    if found is None:
        raise BadRequest(f"--ray {address}: no address", "give HOST:PORT, or put --ray behind the models")
    try:
        with socket.create_connection((found[1], int(found[2])), _CONNECT_S):
            return address
    except (OSError, OverflowError) as error:
        raise BadRequest(f"--ray: there is no Ray cluster at {address}: {error}", _START) from None


class RayExecutor:
    """Runs jobs as Ray's tasks. Ray queues them, places them and starts them again; see ``jobs.Executor``."""

    def __init__(self, ray: Any, *, board: bool = True) -> None:
        self._interrupted = self._told = False
        self._ray = ray
        self._numbers: dict[Any, int] = {}
        self._taking: Any = None
        if board:
            ray.cloudpickle.register_pickle_by_value(task)
            own = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
            # Where Ray puts it on a node that has just been lost, it is to begin again.
            once_more = {"max_restarts": -1, "max_task_retries": -1}
            self._board = ray.remote(task.Board).options(num_cpus=0, scheduling_strategy=own, **once_more).remote()
            self._task = ray.remote(max_calls=1)(task.task)  # a process of its own for each job

    def start(self, number: int, place: ClusterPlace, request: bytes) -> None:
        options: dict[str, Any] = {"max_retries": MOST_STARTS - 1, "name": f"tputfind {number}"}
        if place.resource == HOST:
            options["num_cpus"] = place.amount
        elif place.resource == "GPU":
            options["num_gpus"] = place.amount
        else:
            options["resources"] = {place.resource: place.amount}
        if place.kind is not None:
            options["label_selector"] = {KIND: place.kind}
        if place.node is not None:
            strategies = self._ray.util.scheduling_strategies
            options["scheduling_strategy"] = strategies.NodeAffinitySchedulingStrategy(place.node.id, soft=False)
        self._numbers[self._task.options(**options).remote(number, request, self._board)] = number

    def interrupt(self, *_: object) -> None:
        """Have ``ended`` raise a KeyboardInterrupt: once, however often this is called."""
        self._interrupted = True

    def ended(self, timeout_s: float) -> Iterable[End]:
        ready, _ = self._ray.wait(list(self._numbers), num_returns=1, timeout=timeout_s, fetch_local=True)
        if self._interrupted and not self._told:
            self._told = True
            raise KeyboardInterrupt
        return [End(self._numbers.pop(each), *self._answer(each)) for each in ready]

    def words(self) -> Iterable[bytes]:
        if self._taking is None:
            self._taking = self._board.take.remote()
        ready, _ = self._ray.wait([self._taking], timeout=0)
        if not ready:
            return []
        lines, _ = self._answer(self._taking)
        self._taking = None
        return lines.splitlines() if lines else []

    def cancel(self, numbers: Iterable[int]) -> None:
        wanted = set(numbers)
        for each in [each for each, number in self._numbers.items() if number in wanted]:
            with suppress(Exception):  # it has ended, or its node has
                self._ray.cancel(each, force=True)
            del self._numbers[each]

    def nodes(self) -> Sequence[Node]:
        return [
            Node(one["NodeID"], one["NodeManagerAddress"], one["Labels"].get(KIND, ""), one["Resources"])
            for one in self._ray.nodes()
            if one["Alive"]
        ]

    def _answer(self, reference: Any) -> tuple[bytes | None, str]:
        """Return the bytes that a task returned, or why there are none.

        ``ray.get`` would unpickle an exception, or any other value, that a node sent.
        """
        worker = self._ray._private.worker.global_worker  # noqa: SLF001  # as above
        ((data, metadata, _),) = worker.core_worker.get_objects([reference], -1)
        if metadata == b"RAW":
            return b"" if data is None else data.to_pybytes(), ""
        code = metadata.split(b",")[0].decode()
        if not code.isdecimal():
            return None, "its answer is no text"
        name = self._ray.core.generated.common_pb2.ErrorType.Name(int(code))
        return None, _ENDS.get(name, f"Ray says {name}")


_ELSEWHERE: Final = "from-the-root"
"""Holds, in the folder that travels, what does not lie below the current folder."""


def packed(spec: Spec, folder: Path) -> Spec:
    """Copy the files that a spec names into the folder; return the spec as it is asked of a node, which works there.

    A Python file takes along the modules beside it that it imports, found by reading and not by running it. What it
    opens, or imports in other ways, must be on the nodes.
    """
    weights = spec.weights
    if weights is not None and Path(weights).is_file():
        weights = _copied(Path(weights), folder)
    home, apart, attribute = spec.model.rpartition(":")
    model = spec.model
    if spec.source == "file" and Path(model).is_file():
        model = _copied(Path(model), folder)
    elif spec.source == "factory" and home.endswith(".py") and Path(home).is_file():
        model = f"{_staged(Path(home))}{apart}{attribute}"
        for file in _with_imports(Path(home), Path(home).parent):
            _copied(file, folder)
    elif spec.source == "factory":
        for module in _files_of(tuple(home.split(".")), Path()):
            for file in _with_imports(module, Path()):
                _copied(file, folder)
    elif spec.source == "hf" and (place := Path(model.removeprefix("hf:"))).is_dir():
        for file in filter(Path.is_file, place.iterdir()):
            _copied(file, folder)
        model = f"hf:{_staged(place)}"
    return msgspec.structs.replace(spec, model=model, weights=weights)


def _staged(path: Path) -> Path:
    """Return where a file lies on the nodes: as it is named here, where that is below the current folder."""
    named = Path(os.path.normpath(path))
    if named.is_absolute() or ".." in named.parts:
        return Path(_ELSEWHERE) / Path(os.path.normpath(Path.cwd() / named)).relative_to("/")
    return named


def _copied(path: Path, folder: Path) -> str:
    staged = _staged(path)
    (folder / staged).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, folder / staged)
    return str(staged)


def _with_imports(first: Path, root: Path) -> list[Path]:
    """Return a Python file and the files below a folder that it imports, and those that they import: none is run."""
    found: dict[Path, None] = {}
    waiting = [first]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found[file] = None
        with suppress(SyntaxError, ValueError, OSError, RecursionError):  # the node says what is wrong with it
            for name in _names_imported(ast.parse(file.read_bytes()), file.relative_to(root).parent.parts):
                waiting += _files_of(name, root)
    return list(found)


def _names_imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield what is imported anywhere in a file of this package, each by all its parts; some may be no modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            home = (*above, *(node.module.split(".") if node.module else ()))
            yield from ((*home, alias.name) for alias in node.names)


def _files_of(name: tuple[str, ...], root: Path) -> list[Path]:
    """Return the files below a folder that importing a module runs: its own, and those of the packages it lies in."""
    homes = [root.joinpath(*name[:length]) for length in range(1, len(name) + 1)]
    files = [file for home in homes for file in (home / "__init__.py", home.with_name(f"{home.name}.py"))]
    return [file for file in files if file.is_file()]
