"""Places for jobs in a cluster."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulated_cluster import node, record_of

from tputfind.errors import BadRequest, NoSuchDevice
from tputfind.record import identity
from tputfind.record.spec import Spec
from tputfind.runners.on_node import Request
from tputfind.runners.places import Node, answers, left_out, places_of

H100 = node(1, "H100", GPU=8, CPU=64)
L4 = node(2, "L4", GPU=1, CPU=16)
HEAD = node(3, "", CPU=4)
RESOURCES = st.fixed_dictionaries({}, optional={"GPU": st.integers(1, 8), "CPU": st.integers(1, 64)})
NODES = st.lists(st.tuples(st.sampled_from(["", "A", "B"]), RESOURCES), min_size=1, max_size=6).map(
    lambda drawn: [Node(f"{n}", f"10.0.0.{n}", kind, resources) for n, (kind, resources) in enumerate(drawn)]
)


def test_a_job_takes_one_whole_device_of_any_node():
    (place,) = places_of([H100, L4, HEAD], "cuda", "next")

    assert (place.device, place.resource, place.amount, place.kind, place.node) == ("cuda", "GPU", 1, None, None)
    assert [place.may_be(each) for each in (H100, L4, HEAD)] == [True, True, False]


def test_auto_is_an_accelerator_if_any_node_has_one():
    assert places_of([HEAD, L4], "auto", "next")[0].resource == "GPU"
    assert places_of([HEAD, node(4, NPU=2)], "auto", "next")[0].resource == "NPU"
    assert places_of([HEAD], "auto", "next")[0].resource == "CPU"


def test_gpus_of_intel_are_xpu_and_those_without_a_kind_are_what_was_asked_for():
    intel, unknown = node(6, "Intel-GPU-Max-1550", GPU=2), node(7, "", GPU=1)

    assert places_of([HEAD, intel], "auto", "next")[0].device == "xpu"
    assert places_of([intel, L4], "auto", "next")[0].device == "cuda"
    assert [place.device for place in places_of([unknown], "xpu", "each")] == ["xpu:0"]
    with pytest.raises(NoSuchDevice, match="none of the 1 nodes of the cluster has a GPU for --device cuda"):
        places_of([intel], "cuda", "next")


def test_jobs_share_a_node_if_they_need_only_part_of_it():
    def most(device, choice, nodes=(L4, H100, HEAD)):
        return [place.most_on_one(nodes) for place in places_of(nodes, device, choice)]

    assert most("cuda", "next") == [8]
    assert most("cuda", "kinds") == [8, 1]
    assert most("cuda", "each") == [1] * 9
    assert most("cpu", "next") == [1], "a job on the CPU takes its whole node"


def test_kinds_are_one_place_for_each_label():
    places = places_of([H100, L4, node(5, "L4", GPU=4), HEAD], "auto", "kinds")

    assert [place.kind for place in places] == ["H100", "L4"]
    assert not places[0].may_be(L4)


@given(NODES, st.sampled_from(["cpu", "cuda", "auto"]))
def test_each_is_one_place_for_each_device_and_takes_its_whole_node(nodes, device):
    try:
        places = places_of(nodes, device, "each")
    except NoSuchDevice:
        return
    resource = places[0].resource
    having = [each for each in nodes if each.resources.get(resource, 0)]
    count = sum(1 if resource == "CPU" else int(each.resources["GPU"]) for each in having)
    assert len({(place.node.id, place.device) for place in places}) == len(places) == count
    assert all(place.amount == place.node.resources[resource] for place in places)
    assert not left_out(nodes, places)


@given(NODES, st.sampled_from(["cpu", "cuda", "auto"]), st.sampled_from(["next", "kinds", "each"]))
def test_every_place_fits_on_some_node(nodes, device, choice):
    try:
        places = places_of(nodes, device, choice)
    except NoSuchDevice:
        return
    assert all(any(place.may_be(each) for each in nodes) for place in places)


def test_cpu_job_takes_a_whole_node():
    nodes = [node(1, CPU=8), node(2, CPU=8), node(3, CPU=4)]
    (place,) = places_of(nodes, "cpu", "next")

    assert place.amount == 8
    assert left_out(nodes, [place]) == [nodes[2]]


@pytest.mark.parametrize(
    ("device", "choice", "error", "said"),
    [
        ("cuda", "next", NoSuchDevice, "none of the 1 nodes of the cluster has a GPU for --device cuda"),
        ("npu", "each", NoSuchDevice, "none of the 1 nodes of the cluster has a NPU"),
        ("cuda:3", "next", BadRequest, "--device cuda:3: with --ray, Ray chooses the device"),
        ("cpu", "kinds", NoSuchDevice, "none has the label ray.io/accelerator-type"),
    ],
)
def test_device_absent_from_all_nodes_is_refused(device, choice, error, said):
    with pytest.raises(error, match=said):
        places_of([HEAD], device, choice)


def test_a_record_answers_for_its_own_kind_or_node_alone():
    spec = Spec(model="resnet50", device="cuda")
    made = record_of(Request(spec=spec, command=""), L4)
    command = identity.placed_command("tputfind resnet50 --ray --kinds", "L4", L4.address)
    record = msgspec.structs.replace(made, command=command)
    h100, l4 = places_of([H100, L4], "cuda", "kinds")
    (anywhere,) = places_of([H100, L4], "cuda", "next")
    *_, on_l4 = places_of([H100, L4], "cuda", "each")

    assert answers(record, spec, l4)
    assert answers(record, spec, anywhere)
    assert answers(record, msgspec.structs.replace(spec, load="queue", busy_devices=8), anywhere)
    assert not answers(record, spec, h100)
    assert answers(record, spec, on_l4._replace(device="cuda"))
    assert not answers(record, spec, on_l4._replace(node=H100))
    assert not answers(record, Spec(model="resnet18", device="cuda"), l4)
    assert not answers(made, spec, anywhere), "a record of no cluster"


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"given_defaults": ("dtype",)}, {}),
        ({"trial_timeout_s": 60.0}, {"trial_timeout_s": 90.0}),
        ({}, {"grad_mode": "no_grad", "host_lengths": True, "fresh_inputs": True}),
        ({}, {"granularity": 8}),
        ({"model": "net.py:step"}, {"phase": "step", "dtype": "own", "grad_mode": "enabled"}),
    ],
)
def test_answers_with_findings_in_the_record_is_true(asked, found):
    spec = Spec(**{"model": "net.py:model", "device": "cuda", **asked})
    made = record_of(Request(spec=msgspec.structs.replace(spec, **{"given_defaults": (), **found}), command=""), L4)
    record = msgspec.structs.replace(made, command=identity.placed_command("tputfind --ray", None, L4.address))
    (anywhere,) = places_of([H100, L4], "cuda", "next")

    assert answers(record, spec, anywhere)
    for other in ({"dtype": "fp16"}, {"granularity": 3}, {"phase": "train"}, {"device": "cpu"}, {"budget_s": 9.0}):
        assert not answers(record, msgspec.structs.replace(spec, **other), anywhere), other


def test_the_ranks_of_a_job_take_as_many_devices_of_one_node():
    (place,) = places_of([H100, L4, HEAD], "cuda", "next", ranks=4)

    assert (place.amount, [place.may_be(each) for each in (H100, L4)]) == (4, [True, False])
    with pytest.raises(NoSuchDevice, match="no node of the cluster has 16 GPU: the ranks of one model run on one node"):
        places_of([H100, H100], "cuda", "next", ranks=16)
    with pytest.raises(BadRequest, match="leave --gpus and --parallel out"):
        places_of([H100], "cuda", "each", ranks=2)
