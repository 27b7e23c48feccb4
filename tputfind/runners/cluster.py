"""The same jobs on a cluster: Ray runs each on a device of a node, and restarts it if the node is lost.

Answers come back as plain bytes. Ray would unpickle other values, and errors, on the driver, but is never asked to: so
neither a node nor a model can run code here.
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
from tputfind.runners.sweep import Job, queue_spec
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
"""Messages for Ray's error types of a task; other types are shown by Ray's own name."""


class Cluster(NamedTuple):
    """The cluster's address, the choice of its devices, and the folder of records to resume; None for no folder."""

    address: str
    choice: Choice = "next"
    resumed: Path | None = None
    trust_model_file: bool = False


def sweep(job: Job, cluster: Cluster, progress: Progress) -> Iterator[Measured]:
    """Yield the result of each spec at each place as it arrives; finished records of the folder come first.

    TputfindError if there is no such cluster, or no such device in it; other errors as for ``Jobs.follow``.
    """
    with tempfile.TemporaryDirectory() as folder:
        sent = [stage_files(spec, Path(folder)) for spec in job.specs]
        files_to_send = folder if any(Path(folder).iterdir()) else None
        with _connect_ray(cluster.address, files_to_send) as ray:
            executor = RayExecutor(ray)
            nodes = executor.nodes()
            places = places_of(nodes, job.specs[0].device, cluster.choice, job.specs[0].device_count)
            if unused := left_out(nodes, places):
                progress.about("cluster")
                where = ", ".join(node.address for node in unused)
                progress.did(
                    f"no job runs on {where}: smaller than others, or without the label {KIND}; --each takes all"
                )
            jobs = [
                ClusterJob(_at(spec, place, busy), _at(there, place, busy), place)
                for spec, there in zip(job.specs, sent, strict=True)
                for place in places
                for busy in [min(len(job.specs), place.most_on_one(nodes))]
            ]
            begun = _find_begun_records(jobs, cluster.resumed)
            done = [number for number, (record, _) in begun.items() if record.finished is not None]
            for number in done:
                record, path = begun[number]
                progress.about(f"{number + 1}/{len(jobs)} {path}")
                progress.did("is finished")
                yield Measured(record, files.RecordFile.at(path if job.folder else None), error_of(record))
            missing = {number: one for number, one in enumerate(jobs) if number not in done}
            following = Jobs(missing, executor, progress, job.command, trust_model_file=cluster.trust_model_file)
            with signals.handled_by(executor.interrupt):  # no interruption between an answer and its file
                for came in following.follow():
                    file = _file_of(job.folder, came, begun.get(came.number))
                    if came.whole:
                        file.save(came.record)
                    yield Measured(came.record, file, came.ended_by)


def list_nodes(address: str) -> list[Node]:
    """Return the nodes of a cluster; errors as for ``sweep``."""
    with _connect_ray(address, None) as ray:
        return sorted(RayExecutor(ray, board=False).nodes(), key=lambda node: node.address)


def _at(spec: Spec, place: ClusterPlace, busy: int) -> Spec:
    return msgspec.structs.replace(queue_spec(spec, busy), device=place.device)


def _file_of(folder: Path | None, came: Came, begun: tuple[Record, Path] | None) -> files.RecordFile:
    """Return the file for a job's result: that of the record it resumes, or none if the result holds less."""
    record = came.record
    if folder is not None and begun is not None:
        before, path = begun
        less = not came.whole or (came.ended_by is not None and len(record.rows) < len(before.rows))
        return files.RecordFile.at(None if less else path)
    looked_at = Inspection(environment=record.environment, input_shape=record.input_shape, parameters=record.parameters)
    return record_file_of(folder, record.spec, looked_at)


def _find_begun_records(jobs: Sequence[ClusterJob], folder: Path | None) -> dict[int, tuple[Record, Path]]:
    """Return the records in a folder that belong to these jobs, finished or cut short, by the number of the job.

    BadRecord if the file of a model has changed since.
    """
    found: dict[int, tuple[Record, Path]] = {}
    for path in sorted(folder.glob("*.json")) if folder else ():
        try:
            record = files.load_record(path)
        except TputfindError:  # of another command, or no record: not resumable
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
def _connect_ray(address: str, folder: str | None) -> Iterator[Any]:
    """Yield Ray, connected to a cluster that has the files of a folder; disconnecting ends everything that runs."""
    try:
        import ray
    except ModuleNotFoundError:
        raise BadRequest("--ray needs Ray, which is not installed", "pip install 'tputfind[ray]'") from None
    address = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    address = _check_address(_local_address(ray) if address == "auto" else address)
    environment = {} if folder is None else {"working_dir": folder}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray prints a warning about later versions
    try:
        with signals.restore_handlers():  # Ray takes some of them, in Python and in its library
            ray.init(address=address, runtime_env=environment, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:  # many kinds: no cluster, another version, files too large to send
        said = f"{error}".strip().split("\n")[0]
        where = "there is no Ray cluster here" if address == "auto" else f"cannot join the Ray cluster at {address}"
        raise BadRequest(f"--ray: {where}: {said}", _START) from None
    try:
        yield ray
    finally:
        ray.shutdown()


_START: Final = "on its first node: ray start --head; on the others: ray start --address HOST:PORT"


def _local_address(ray: Any) -> str:
    """Return the address that Ray would join by itself, which may be that of a killed cluster."""
    try:
        return str(ray._private.services.get_ray_address_from_environment("auto", None))  # noqa: SLF001  # no other tells
    except Exception:  # there is none, which Ray reports itself, or this version of Ray finds it otherwise
        return "auto"


def _check_address(address: str) -> str:
    """Return an address that accepts connections: Ray itself would wait for a minute."""
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
    """Runs jobs as Ray tasks. Ray queues, places and restarts them; see ``jobs.Executor``."""

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
            # If Ray puts the board on a node that has just been lost, the board starts again.
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
        """Make ``poll_ends`` raise KeyboardInterrupt: once, however often this is called."""
        self._interrupted = True

    def poll_ends(self, timeout_s: float) -> Iterable[End]:
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
        """Return the bytes that a task returned, or the reason why there are none.

        ``ray.get`` would unpickle an exception, or any other value, that a node sent.
        """
        worker = self._ray._private.worker.global_worker  # noqa: SLF001  # as above
        ((data, metadata, _),) = worker.core_worker.get_objects([reference], -1)
        if metadata == b"RAW":
            return b"" if data is None else data.to_pybytes(), ""
        code = metadata.split(b",")[0].decode()
        if not code.isdecimal():
            return None, "its answer is not text"
        name = self._ray.core.generated.common_pb2.ErrorType.Name(int(code))
        return None, _ENDS.get(name, f"Ray says {name}")


_ELSEWHERE: Final = "from-the-root"
"""Subfolder, in the folder that is sent, for files that do not lie below the current folder."""


def stage_files(spec: Spec, folder: Path) -> Spec:
    """Copy the files that a spec names into the folder; return the spec with their paths on a node.

    A Python file takes along the modules in its folder that it imports; they are found by parsing, without running the
    file. Files that it opens, or imports in other ways, must be on the nodes.
    """
    weights = spec.weights
    if weights is not None and Path(weights).is_file():
        weights = _stage_file(Path(weights), folder)
    home, apart, attribute = spec.model.rpartition(":")
    model = spec.model
    if spec.source == "file" and Path(model).is_file():
        model = _stage_file(Path(model), folder)
    elif spec.source == "factory" and home.endswith(".py") and Path(home).is_file():
        model = f"{_path_on_node(Path(home))}{apart}{attribute}"
        for file in _imported_files(Path(home), Path(home).parent):
            _stage_file(file, folder)
    elif spec.source == "factory":
        for module in _files_of(tuple(home.split(".")), Path()):
            for file in _imported_files(module, Path()):
                _stage_file(file, folder)
    elif spec.source == "hf" and (place := Path(model.removeprefix("hf:"))).is_dir():
        for file in filter(Path.is_file, place.iterdir()):
            _stage_file(file, folder)
        model = f"hf:{_path_on_node(place)}"
    return msgspec.structs.replace(spec, model=model, weights=weights)


def _path_on_node(path: Path) -> Path:
    """Return the path of a file on the nodes: its relative path, if it lies below the current folder."""
    named = Path(os.path.normpath(path))
    if named.is_absolute() or ".." in named.parts:
        return Path(_ELSEWHERE) / Path(os.path.normpath(Path.cwd() / named)).relative_to("/")
    return named


def _stage_file(path: Path, folder: Path) -> str:
    staged = _path_on_node(path)
    try:
        (folder / staged).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / staged)
    except OSError as error:  # the file is unreadable, or the disk of the temporary folder is full
        raise BadRequest(f"cannot copy {path} for the nodes to {folder}: {error.strerror}") from None
    return str(staged)


def _imported_files(first: Path, root: Path) -> list[Path]:
    """Return a Python file and the files below a folder that it imports, directly or indirectly; none is run."""
    found: dict[Path, None] = {}
    waiting = [first]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found[file] = None
        with suppress(SyntaxError, ValueError, OSError, RecursionError):  # the node reports the error in the file
            for name in _imported_names(ast.parse(file.read_bytes()), file.relative_to(root).parent.parts):
                waiting += _files_of(name, root)
    return list(found)


def _imported_names(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the names that a file of this package imports anywhere, split into parts; some may not be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            home = (*above, *(node.module.split(".") if node.module else ()))
            yield from ((*home, alias.name) for alias in node.names)


def _files_of(name: tuple[str, ...], root: Path) -> list[Path]:
    """Return the files below a folder that importing a module runs: its own, and those of its parent packages."""
    homes = [root.joinpath(*name[:length]) for length in range(1, len(name) + 1)]
    files = [file for home in homes for file in (home / "__init__.py", home.with_name(f"{home.name}.py"))]
    return [file for file in files if file.is_file()]
