"""torchvision's models, of every family, by name alone."""

import json

import pytest
import torch
from support.command import QUICK
from torch.utils._pytree import tree_leaves

from tputfind.errors import BadRequest
from tputfind.record.spec import read_spec
from tputfind.session.catalogue import stored_models
from tputfind.worker.models.torchvision_models import find, named_models
from tputfind.worker.workload import Workload, inference

SMALLEST = {"inception_v3": 75, "maxvit_t": 224, "mvit_v1_b": 224, "mvit_v2_s": 224, "s3d": 224, "vit_h_14": 56}
"""Smallest image sizes of models; RAFT needs 128."""
NAMED = stored_models() or list(named_models())


@pytest.mark.parametrize(
    ("name", "size", "shape"),
    [
        ("quantized_shufflenet_v2_x0_5", 64, "3x64x64"),
        ("lraspp_mobilenet_v3_large", 32, "3x32x32"),
        ("mc3_18", 16, "3x16x16x16"),
        ("raft_small", 128, "3x128x128+3x128x128"),
    ],
)
def test_model_of_each_family_is_timed_with_its_input(tmp_path, ask, name, size, shape):
    ran = ask(tmp_path, name, "--device", "cpu", "--image-size", size, "--batch-sizes", "1,2", *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert record.input_shape == shape
    assert [row.status for row in record.rows] == ["ok", "ok"]
    assert all(row.samples_per_s > 0 for row in record.rows)


@pytest.mark.zoo
@pytest.mark.parametrize("named", NAMED, ids=[model.name for model in NAMED])
def test_every_model_builds_and_matches_its_published_weights(named):
    size = SMALLEST.get(named.name.removeprefix("quantized_"), 128 if named.family == "optical flow" else 64)
    small = {} if named.family == "detection" or "swin" in named.name else {"image_size": size}
    workload = Workload(read_spec(named.name, small), torch.device("cpu"))

    with inference():
        output = workload.batch(1)()

    assert tree_leaves(output)
    built, _ = find(read_spec(named.name, {})).build()
    own = sum(parameter.numel() for parameter in built.parameters())
    assert own == (0 if named.family == "quantized" else named.parameters)  # int8 weights are not parameters


@pytest.mark.zoo
def test_a_detector_leaves_an_image_of_its_own_size_as_it_is():
    for named in NAMED:
        if named.family == "detection":
            workload = Workload(read_spec(named.name, {}), torch.device("cpu"))
            (images,) = workload.batch(1)._inputs[0]

            (inside,) = workload._module.transform(images)[0].image_sizes

            assert inside == images[0].shape[1:], named.name


def test_detector_notices_explain_its_figures(tmp_path, ask):
    name = "ssdlite320_mobilenet_v3_large"
    ran = ask(tmp_path, name, "--device", "cpu", "--image-size", 64, "--batch-sizes", "1,2", *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    assert record.input_shape == "3x64x64"
    assert [row.status for row in record.rows] == ["ok", "ok"]
    told = {notice.kind: notice for notice in record.notices}
    assert "random weights" in told["random_weights"].seen
    assert "resizes samples of 3x64x64 to 3x320x320 inside" in told["resized"].seen
    assert "--weights DEFAULT" in ran.out


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["quantized_resnet18", "--dtype", "bf16"], 3, "it computes in int8, whatever its inputs are"),
        (["raft_small", "--dtype", "bf16", "--image-size", "128"], 3, "raft_small cannot do --dtype bf16"),
        (["vgg11", "--image-size", "16"], 2, "vgg11 does not take an input of that size"),
        (["vgg11", "--input-size", "3x64"], 2, "vgg11 takes samples such as 3x224x224, not 3x64"),
        (["vgg11", "--input-size", "1x64x64"], 2, "vgg11 takes samples such as 3x224x224, not 1x64x64"),
        (["r3d_18", "--input-size", "3x64x64"], 2, "r3d_18 takes samples such as 3x16x112x112, not 3x64x64"),
        (["resnet18", "--weights", "BEST"], 2, "neither a file nor weights of resnet18: it has IMAGENET1K_V1, DEFAULT"),
        (["vit_b_16", "--weights", "DEFAULT", "--image-size", "64"], 2, "are for samples of 3x224x224 alone"),
    ],
)
def test_impossible_model_option_is_refused_in_one_line(tmp_path, ask, arguments, status, expected):
    ask(tmp_path, *arguments, "--device", "cpu", "--quiet", "--no-save").check_refused(status, expected)


def test_weights_from_a_file_are_used_and_recorded(tmp_path, ask):
    from torchvision.models import mobilenet_v3_small

    trained = mobilenet_v3_small(weights=None).state_dict()
    torch.save({"state_dict": trained}, tmp_path / "mine.pth")
    asked = {"weights": str(tmp_path / "mine.pth"), "image_size": 32}

    built, _ = find(read_spec("mobilenet_v3_small", asked)).build()
    ran = ask(tmp_path, "mobilenet_v3_small", "--weights", "mine.pth", "--image-size", 32, "--batch-sizes", 1, *QUICK)

    assert all(torch.equal(tensor, trained[name]) for name, tensor in built.state_dict().items())
    assert ran.status == 0, ran.err
    assert ran.record().spec.weights == "mine.pth"
    assert ran.record().source_sha256 is not None


@pytest.mark.parametrize("holding", [b"", b"no weights", json.dumps({}).encode()])
def test_a_file_that_holds_no_weights_is_refused(tmp_path, holding):
    (tmp_path / "broken.pth").write_bytes(holding)

    with pytest.raises(BadRequest, match="holds no weights of resnet18"):
        find(read_spec("resnet18", {"weights": str(tmp_path / "broken.pth")})).build()


def test_weights_of_another_model_are_refused(tmp_path, ask):
    from torchvision.models import resnet18

    torch.save(resnet18(weights=None).state_dict(), tmp_path / "other.pth")

    ran = ask(tmp_path, "alexnet", "--weights", "other.pth", "--quiet")

    assert ran.status == 2
    assert "other.pth holds no weights of alexnet: Error(s) in loading state_dict" in ran.err


def test_the_list_at_hand_is_torchvisions_own():
    from torchvision.models import list_models

    assert list(named_models()) == NAMED
    assert len(NAMED) == len(list_models())
