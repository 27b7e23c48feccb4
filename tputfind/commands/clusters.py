"""What --ray and the options that go with it ask for."""

from __future__ import annotations

from typing import get_args

from tputfind.commands.console import Given
from tputfind.errors import BadRequest
from tputfind.fleet.cluster import Cluster
from tputfind.fleet.devices import is_list
from tputfind.fleet.places import Choice
from tputfind.record import files


def cluster_of(given: Given) -> Cluster | None:
    """Return the cluster that is asked for, None for this host.

    Raises:
        BadRequest: options do not go together.
    """
    named = [choice for choice in get_args(Choice) if given.get(choice)]
    if given["ray"] is None:
        if given["kinds"]:
            raise BadRequest("--kinds is for the devices of a cluster, and needs --ray")
        return None
    if given["all_busy"]:
        raise BadRequest("--all-busy is for the devices of one host", "run it on a node of the cluster, without --ray")
    if is_list(given["device"]):
        raise BadRequest(f"--device {given['device']}: with --ray, name one kind of device", "--each measures all")
    if len(named) > 1:
        raise BadRequest("--kinds and --each both say on which devices: give one", "--each measures all of each kind")
    resumed = None if given["resume"] is None else files.path_of("--resume", given["resume"])
    if resumed is not None and not resumed.is_dir():
        raise BadRequest(f"--resume {resumed}: with --ray, it names the folder of the records that are there already")
    return Cluster(given["ray"], named[0] if named else "next", resumed, given["trust_model_file"])
