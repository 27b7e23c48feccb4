"""The inspection of a spec's model and device before a measurement, and the empty record of the measurement."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from tputfind.analysis import notices
from tputfind.errors import ModelFailed, NothingFits
from tputfind.processes import cores
from tputfind.processes.children import Children
from tputfind.processes.failures import ChildFailed
from tputfind.processes.messages import Inspect, Inspection
from tputfind.record import files
from tputfind.record.environment import Environment
from tputfind.record.record import FailureKind, Record
from tputfind.record.spec import Spec, own_step
from tputfind.record.types import SOURCES, is_compile_mode
from tputfind.session.catalogue import check_torchvision
from tputfind.session.health import memory_in_use_bytes
from tputfind.session.trials import FIRST_TIMEOUT_S, check_memory
from tputfind.version import __version__

_HINTS: Final[dict[FailureKind, str]] = {"died": "build it by itself to see why", "error": ""}
"""Hints if no batch was tried yet and there is no traceback."""


def inspect(spec: Spec, children: Children) -> Inspection:
    """Return the inspection of a spec's model and device; raise an error if the spec cannot be measured."""
    preload_packages(spec, children)
    try:
        inspection = children.ask_one(Inspect(spec), Inspection, spec.trial_timeout_s or FIRST_TIMEOUT_S)
    except ChildFailed as death:
        if death.failure.kind == "host_memory":
            error = NothingFits(f"{spec.model} cannot be built: {death}", "give the host or its container more memory")
            error.kind = death.failure.kind
            raise error from None
        hint = _HINTS.get(death.failure.kind, notices.advice(death.failure.kind, spec))
        raise ModelFailed(f"{spec.model} cannot be built: {death}", hint) from None
    others_bytes = memory_in_use_bytes(*inspection.environment.device_uuids)
    kept_to = None if children.cores is None else cores.text(children.cores)
    fields = {"memory_of_others_bytes": others_bytes, "cores": kept_to}
    environment = msgspec.structs.replace(inspection.environment, **fields)
    check_memory(spec, environment)
    return msgspec.structs.replace(inspection, environment=environment)


def apply_inspection(spec: Spec, inspection: Inspection) -> Spec:
    """Return the spec with the granularity that the inspection found, or as a step of the user's own if it is one."""
    spec = own_step(spec) if inspection.own_step else msgspec.structs.replace(spec, given_defaults=())
    return spec if inspection.granularity is None else msgspec.structs.replace(spec, granularity=inspection.granularity)


def preload_packages(spec: Spec, children: Children) -> None:
    """Import in the server the packages that every process for a spec needs; errors as for ``check_torchvision``."""
    package = SOURCES[spec.source].package
    if spec.source == "torchvision":
        check_torchvision(children)
    elif package is not None:
        children.preload(package)  # if the import fails, the inspection reports why
    if spec.source == "hf":
        children.preload("transformers.modeling_utils")
    trains = spec.phase == "train" or spec.gpus is not None  # a step on several devices has an optimizer
    if is_compile_mode(spec.mode) or trains:  # every optimizer imports it
        children.preload("torch._dynamo")


def record_file_of(
    folder: Path | None, spec: Spec, inspection: Inspection, more: tuple[str, ...] = ()
) -> files.RecordFile:
    """Return the file of the record of this run; it saves nothing if ``folder`` is None."""
    return files.RecordFile(folder, stem_of(apply_inspection(spec, inspection), inspection.environment, more))


def stem_of(spec: Spec, environment: Environment, more: tuple[str, ...] = ()) -> str:
    """Return the name of a record's file, without its suffix.

    It consists of the model, the dtype, the options that differ from their defaults, the device, and ``more``.
    """
    name = spec.model.replace(".py:", "-").rpartition("/")[2]
    layout = () if spec.layout == "nchw" else (spec.layout,)
    ranks = () if spec.ranks is None else (f"instances{spec.instances}" if spec.has_instances else f"x{spec.ranks}",)
    chosen = filter(None, (spec.optimizer, "checkpoint" * spec.grad_checkpoint, spec.allocator))
    parts = (name, spec.dtype, *layout, *spec.mode_and_phase, *chosen, *ranks, environment.device_name, *more)
    return "-".join(map(files.slug, parts))


def new_record(spec: Spec, inspection: Inspection, command: str) -> Record:
    return Record(
        tputfind=__version__,
        command=command,
        started=now(),
        spec=apply_inspection(spec, inspection),
        environment=inspection.environment,
        input_shape=inspection.input_shape,
        parameters=inspection.parameters,
        source_sha256=inspection.source_sha256,
        caveats=inspection.caveats,
        settings=inspection.settings,
    )


def now() -> str:
    """Return the current time as in records: ISO 8601, UTC, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
