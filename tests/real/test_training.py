"""Training steps: their results, their memory, and models that cannot be trained."""

from typing import NamedTuple

import pytest
import torch
from support.command import QUICK
from support.folders import MODELS, record_path
from torch import nn
from torch.nn.functional import cross_entropy

from tputfind.processes.messages import TryBatch
from tputfind.record.record import Trial
from tputfind.record.spec import read_spec
from tputfind.worker.structures import parts_of
from tputfind.worker.training import Training, _checkpoint, own_loss, place_of_loss
from tputfind.worker.workload import Workload

SMALL = f"{MODELS}/compiled.py:small"
TRAIN = ("--device", "cpu", "--phase", "train", *QUICK)


@pytest.mark.parametrize("more", [("--dtype", "bf16"), ("--dtype", "amp-bf16", "--layout", "nhwc")])
def test_a_step_of_training_is_timed_and_its_loss_stays_a_number(tmp_path, ask, more):
    ran = ask(tmp_path, "mobilenet_v3_small", "--image-size", 32, "--batch-sizes", "2,8", *more, *TRAIN)

    assert ran.status == 0, ran.err
    record = ran.record("*-train-*")
    assert [row.output.result for row in record.rows] == ["loss", "loss"]
    assert record.spec.phase == "train"
    assert "train" in ran.out


@pytest.mark.parametrize(
    ("optimizer", "make"),
    [("sgd", lambda weights: torch.optim.SGD(weights, lr=1e-4, momentum=0.9)), ("adamw", torch.optim.AdamW)],
)
def test_training_step_computes_like_a_plain_loop(optimizer, make):
    workload = Workload(read_spec(SMALL, {"phase": "train", "optimizer": optimizer}), torch.device("cpu"))
    plain = Workload(read_spec(SMALL, {}), torch.device("cpu"))
    module, batch = plain._module.train(), plain.batch(8)
    steps = make(module.parameters())
    if optimizer == "adamw":
        steps.param_groups[0]["lr"] = 1e-4

    with torch.enable_grad():
        trained = workload.batch(8)
        losses = [float(trained()) for _ in range(3)]
        expected = []
        for _ in range(3):
            loss = cross_entropy(batch(), torch.arange(8) % 4)
            steps.zero_grad()
            loss.backward()
            steps.step()
            expected.append(loss.item())

    assert losses == pytest.approx(expected, rel=1e-6)
    assert losses[0] != losses[2]
    assert all(map(torch.equal, workload._module.parameters(), module.parameters()))


def test_gradients_and_optimizer_state_are_part_of_the_peak(children):
    weights_mib = 64

    def peak_mib(**asked: str) -> float:
        spec = read_spec(f"{MODELS}/compiled.py:wide", {"device": "cpu", **asked})
        trial = children.ask_one(TryBatch(spec, 1), Trial, 60)
        assert trial.failure is None
        return trial.peak_allocated_bytes / 2**20

    infer, sgd, adamw = peak_mib(), peak_mib(phase="train"), peak_mib(phase="train", optimizer="adamw")

    assert sgd - infer == pytest.approx(2 * weights_mib, rel=0.3)  # gradient, momentum
    assert adamw - sgd > 0.9 * weights_mib  # a second moment, and temporary memory of its step


def _bytes_of_state(optimizer: str) -> int:
    workload = Workload(read_spec(SMALL, {"phase": "train", "optimizer": optimizer}), torch.device("cpu"))
    with torch.enable_grad():
        workload.batch(8)()
    states = workload._training.optimizers[0].state.values()
    return sum(value.nbytes for state in states for value in state.values() if torch.is_tensor(value) and value.dim())


@pytest.mark.parametrize(
    ("name", "kept"),
    [("sgd", 1), ("Adam", 2), ("torch.optim.NAdam", 2), ("ADAMAX", 2), ("rmsprop", 1), ("adagrad", 1), ("rprop", 2)],
)
def test_every_torch_optimizer_is_made_by_name_with_its_state(name, kept):
    weights = sum(weight.nbytes for weight in Workload(read_spec(SMALL, {}), torch.device("cpu"))._module.parameters())

    assert _bytes_of_state(name) == kept * weights


@pytest.mark.parametrize("dtype", ["fp32", "amp-fp16"])
def test_clipping_limits_the_gradient_norm(dtype, monkeypatch):
    asked = {"phase": "train", "clip": "0.001", "dtype": dtype}
    workload = Workload(read_spec(SMALL, asked), torch.device("cpu"))
    norms, weights = [], list(workload._module.parameters())
    workload._training.optimizers[0].register_step_pre_hook(
        lambda *_: norms.append(torch.linalg.vector_norm(torch.cat([weight.grad.flatten() for weight in weights])))
    )

    with torch.enable_grad():
        workload.batch(8)()

    assert [float(norm) for norm in norms] == pytest.approx([0.001] * len(norms), rel=1e-2)
    assert norms


def test_accumulation_computes_like_plain_loop_over_micro_batches():
    asked = {"phase": "train", "accumulate": 3}
    workload = Workload(read_spec(SMALL, asked), torch.device("cpu"))
    plain = Workload(read_spec(SMALL, {}), torch.device("cpu"))
    module, batch = plain._module.train(), plain.batch(8)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)
    stepped = []
    workload._training.optimizers[0].register_step_post_hook(lambda *_: stepped.append(1))

    with torch.enable_grad():
        trained = workload.batch(8)
        trained(), trained()
        for _ in range(2):
            for _ in range(3):
                (cross_entropy(batch(), torch.arange(8) % 4) / 3).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert len(stepped) == 2
    assert all(map(torch.allclose, workload._module.parameters(), module.parameters()))
    assert workload.samples(8) == 24


def test_record_holds_the_options_of_training_and_counts_every_micro_batch(tmp_path, ask):
    asked = ("--accumulate", 4, "--optimizer", "Adafactor", "--clip", 1, "--batch-sizes", "2,8", "--save", "a.csv")
    ran = ask(tmp_path, SMALL, *asked, *TRAIN)

    assert ran.status == 0, ran.err
    spec, row = ran.record("*-train-*").spec, ran.record("*-train-*").rows[1]
    assert (spec.optimizer, spec.clip) == ("adafactor", 1.0)
    assert "optimizer (adafactor)" in ran.out or "stand-in" in ran.out
    assert row.samples_per_s == pytest.approx(32 * len(row.device_ms) * 1000 / sum(row.device_ms))
    assert ", 4 batches a step" in " ".join(ran.out.split())
    header, *_, last = (tmp_path / "a.csv").read_text().splitlines()
    assert dict(zip(header.split(","), last.split(","), strict=True))["samples_per_step"] == "32"


def test_accumulation_takes_the_memory_of_a_micro_batch(children):
    def peak_mib(accumulate: int) -> float:
        spec = read_spec(f"{MODELS}/compiled.py:wide", {"device": "cpu", "phase": "train", "accumulate": accumulate})
        trial = children.ask_one(TryBatch(spec, 8), Trial, 60)
        assert trial.failure is None
        return trial.peak_allocated_bytes / 2**20

    assert peak_mib(8) == pytest.approx(peak_mib(2), rel=0.05)


def test_micro_batch_is_computed_without_the_output_of_the_one_before(children):
    def peak_mib(accumulate: int) -> float:
        spec = read_spec(
            f"{MODELS}/train.py:large_output", {"device": "cpu", "phase": "train", "accumulate": accumulate}
        )
        trial = children.ask_one(TryBatch(spec, 8), Trial, 60)
        assert trial.failure is None
        return trial.peak_allocated_bytes / 2**20

    assert peak_mib(2) < peak_mib(1) + 32  # an output takes 64 MiB


def test_stand_in_loss_of_masked_scores_is_no_divergence(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/train.py:masked_scores", "--batch-sizes", 8, *TRAIN)

    assert ran.status == 0, ran.err
    assert [row.output.result for row in ran.record().rows] == ["loss"]


def test_checkpoints_of_layers_after_frozen_ones_keep_their_gradients():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = transformers.BertForSequenceClassification(config).train()
    model.bert.embeddings.requires_grad_(False)
    _checkpoint(model, "bert")

    model(torch.ones(2, 8, dtype=torch.int64)).logits.sum().backward()
    assert all(weight.grad is not None for weight in model.bert.encoder.parameters())
    assert model.bert.encoder.layer[0]._gradient_checkpointing_func.keywords == {"use_reentrant": False}


def test_effective_batch_is_answered_by_a_run_and_by_its_report(tmp_path, ask):
    ran = ask(tmp_path, SMALL, "--effective-batch", 24, "--batch-sizes", "2,8", *TRAIN)
    (path,) = (tmp_path / "results").glob("*.json")
    again = ask(tmp_path, "report", path, "--effective-batch", "48")
    refused = ask(tmp_path, "report", record_path("nvidia-h200/default/resnet50-fp16.json"), "--effective-batch", "48")

    assert ran.status == 0, ran.err
    assert "batch 8 x 3 accumulated" in " ".join(ran.out.split())
    assert "batch 8 x 6 accumulated" in " ".join(again.out.split())
    refused.check_refused(2, "--effective-batch is for records of --phase train")


_TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}
_ENCODES = {f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")}
_BART = {"d_model": 32, "vocab_size": 99, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, **_ENCODES}
_VIT = {"image_size": 32, "patch_size": 8, **{name: _TINY[name] for name in list(_TINY)[:4]}}
_GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 99, "n_positions": 64}
_LONG = {**_TINY, "attention_window": [4], "sep_token_id": 2}
_LXMERT = {**_TINY, "l_layers": 1, "x_layers": 1, "r_layers": 1, "num_qa_labels": 9}
_XLM = {"emb_dim": 32, "n_layers": 1, "n_heads": 2, "vocab_size": 99}
_SPEECH = {**_TINY, "conv_dim": [8, 8], "conv_stride": [5, 4], "conv_kernel": [10, 8], "tdnn_dim": [8] * 5} | {
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}
_SERIES = {"d_model": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "ffn_dim": 32} | {
    "context_length": 16,
    "patch_length": 4,
    "patch_stride": 4,
    "prediction_length": 6,
    "num_input_channels": 3,
}
_SEGMENTS = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 16} | {
    "encoder_layers": 1,
    "decoder_layers": 2,
    "num_attention_heads": 2,
    "dim_feedforward": 16,
    "num_queries": 9,
    "train_num_points": 64,
}
_SWIN = {"embed_dim": 8, "depths": [1] * 4, "num_heads": [2] * 4, "window_size": 4, "image_size": 32} | {
    "out_features": [f"stage{number}" for number in range(1, 5)]
}
_LUKE = {**_TINY, "entity_vocab_size": 9, "entity_emb_size": 32}
_REGIONS = {**_TINY, "visual_embedding_dim": 16}
_PERCEIVER = {"num_latents": 4, "d_latents": 32, "num_blocks": 1, "num_self_attends_per_block": 1} | {
    "num_cross_attention_heads": 1,
    "num_self_attention_heads": 2,
    "vocab_size": 99,
    "max_position_embeddings": 16,
    "d_model": 32,
}
_DEPTH = {"depths": [1] * 4, "hidden_sizes": [8] * 4, "num_attention_heads": [2] * 4, "decoder_hidden_size": 8}
_DPT = {**_VIT, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]} | {
    "neck_hidden_sizes": [8] * 4,
    "fusion_hidden_size": 8,
}
_CLIPSEG = {"text_config": {**_TINY, "bos_token_id": 0, "eos_token_id": 98}, "vision_config": _VIT} | {
    "projection_dim": 32,
    "extract_layers": [0],
    "reduce_dim": 16,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 32,
}
_SEGGPT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 32, "patch_size": 8} | {
    "image_size": [64, 32],
    "intermediate_hidden_state_indices": [0, 1],
    "decoder_hidden_size": 8,
    "merge_index": 0,
    "pretrain_image_size": 32,
}
_NO_TEXT = ("ViT", "Wav2Vec2", "PatchTST", "GLPN", "DPT", "SegGpt")
_TARGETS = ("label", "position", "future", "target")
_HEADS = [
    ("BertForMaskedLM", "Bert", _TINY, {"labels": (8,)}),
    ("BertForSequenceClassification", "Bert", {**_TINY, "num_labels": 5}, {"labels": ()}),
    ("BertForSequenceClassification", "Bert", {**_TINY, "num_labels": 1}, {"labels": ()}),
    ("BertForTokenClassification", "Bert", _TINY, {"labels": (8,)}),
    ("BertForQuestionAnswering", "Bert", _TINY, {"start_positions": (), "end_positions": ()}),
    ("BertForPreTraining", "Bert", _TINY, {"labels": (8,), "next_sentence_label": ()}),
    ("LlamaForCausalLM", "Llama", _TINY, {"labels": (8,)}),
    ("BartForConditionalGeneration", "Bart", _BART, {"labels": (8,)}),
    ("ViTForImageClassification", "ViT", _VIT, {"labels": ()}),
    ("BertForMultipleChoice", "Bert", _TINY, {"labels": ()}),
    ("BartForSequenceClassification", "Bart", _BART, {"labels": ()}),
    ("LongformerForQuestionAnswering", "Longformer", _LONG, {"start_positions": (), "end_positions": ()}),
    ("ViltForQuestionAnswering", "Vilt", {**_VIT, **_TINY, "num_labels": 5}, {"labels": (5,)}),
    ("LxmertForQuestionAnswering", "Lxmert", _LXMERT, {"labels": ()}),
    ("XLMForQuestionAnsweringSimple", "XLM", _XLM, {"start_positions": (), "end_positions": ()}),
    ("Wav2Vec2ForXVector", "Wav2Vec2", _SPEECH, {"labels": ()}),
    ("Wav2Vec2ForAudioFrameClassification", "Wav2Vec2", {**_SPEECH, "num_labels": 5}, {"labels": (798, 5)}),
    ("PatchTSTForPrediction", "PatchTST", _SERIES, {"future_values": (6, 3)}),
    ("PatchTSTForRegression", "PatchTST", {**_SERIES, "num_targets": 2, "loss": "mse"}, {"target_values": (2,)}),
    ("PatchTSTForClassification", "PatchTST", {**_SERIES, "num_targets": 5}, {"target_values": ()}),
    ("GPT2DoubleHeadsModel", "GPT2", _GPT2, {"labels": (4, 8), "mc_labels": ()}),
    ("ImageGPTForCausalImageModeling", "ImageGPT", _GPT2, {"labels": (8,)}),
    ("BertGenerationDecoder", "BertGeneration", {**_TINY, "is_decoder": True}, {"labels": (8,)}),
    ("BertModel", "Bert", _TINY, {}),
    ("OpenAIGPTDoubleHeadsModel", "OpenAIGPT", _GPT2, {"labels": (4, 8), "mc_labels": ()}),
    ("PerceiverForMaskedLM", "Perceiver", _PERCEIVER, {"labels": (16,)}),
    ("LukeForEntityPairClassification", "Luke", _LUKE, {"labels": ()}),
    ("LukeForEntitySpanClassification", "Luke", _LUKE, {"labels": (2,)}),
    ("VisualBertForPreTraining", "VisualBert", _REGIONS, {"labels": (44,), "sentence_image_labels": ()}),
    ("VisualBertForQuestionAnswering", "VisualBert", {**_REGIONS, "num_labels": 5}, {"labels": (5,)}),
    ("VisualBertForMultipleChoice", "VisualBert", _REGIONS, {"labels": ()}),
    ("TapasForQuestionAnswering", "Tapas", _TINY, {"labels": (8,)}),
    ("CLIPSegForImageSegmentation", "CLIPSeg", _CLIPSEG, {"labels": (32, 32)}),
    ("SegGptForImageSegmentation", "SegGpt", _SEGGPT, {"labels": (3, 32, 32)}),
    ("GLPNForDepthEstimation", "GLPN", _DEPTH, {"labels": (224, 224)}),
    ("DPTForDepthEstimation", "DPT", _DPT, {}),  # it raises NotImplementedError if labels are given
]


@pytest.mark.parametrize(("head", "kind", "about", "labels"), _HEADS, ids=[f"{one[0]}{len(one[2])}" for one in _HEADS])
def test_model_of_transformers_trains_with_its_own_loss_from_labels(tmp_path, head, kind, about, labels):
    import transformers

    config = getattr(transformers, f"{kind}Config")(**about)
    config.architectures = [head]
    config.save_pretrained(tmp_path / "tiny")
    more = {} if kind in _NO_TEXT else {"sequence_length": 8}
    workload = Workload(read_spec(f"hf:{tmp_path}/tiny", {"phase": "train", **more}), torch.device("cpu"))

    with torch.enable_grad():
        batch = workload.batch(3)
        loss = batch()
    keywords = batch._inputs[1]
    made = workload._module(**keywords)

    targets = {
        name: value
        for name, value in keywords.items()
        if any(word in name for word in _TARGETS) and not name.startswith("entity_")
    }
    drawn = {name: tuple(value.shape) for name, value in targets.items()}
    assert drawn == {name: (3, *shape) for name, shape in labels.items()}
    assert bool(torch.isfinite(loss))
    assert workload.trains_by_stand_in == (not labels)
    assert (getattr(made, "loss", None) is None) == (not labels)


def test_segmentation_model_of_transformers_trains_with_masks_that_are_drawn(tmp_path):
    import transformers

    config = transformers.Mask2FormerConfig(**_SEGMENTS, backbone_config=transformers.SwinConfig(**_SWIN))
    config.architectures = ["Mask2FormerForUniversalSegmentation"]
    config.save_pretrained(tmp_path / "tiny")
    workload = Workload(read_spec(f"hf:{tmp_path}/tiny", {"phase": "train", "image_size": 32}), torch.device("cpu"))

    with torch.enable_grad():
        batch = workload.batch(2)
        loss = batch()

    assert [mask.shape[-2:] for mask in batch._inputs[1]["mask_labels"]] == [(32, 32)] * 2
    assert bool(torch.isfinite(loss))
    assert not workload.trains_by_stand_in


@pytest.mark.parametrize(
    ("head", "kind", "more", "tokens"),
    [
        ("BeitForMaskedImageModeling", "Beit", {"use_mask_token": True, "vocab_size": 50}, 7),
        ("ViTForMaskedImageModeling", "ViT", {"encoder_stride": 8}, None),
    ],
)
def test_masked_image_model_trains_on_the_patches_that_are_masked(tmp_path, head, kind, more, tokens):
    import transformers

    config = getattr(transformers, f"{kind}Config")(**_VIT, **more)
    config.architectures = [head]
    config.save_pretrained(tmp_path / "tiny")
    workload = Workload(read_spec(f"hf:{tmp_path}/tiny", {"phase": "train"}), torch.device("cpu"))

    with torch.enable_grad():
        batch = workload.batch(3)
        loss = batch()

    drawn = batch._inputs[1]
    assert drawn["bool_masked_pos"].shape == (3, 16)
    assert drawn["bool_masked_pos"].sum(1).tolist() == [7, 7, 7]
    assert ("labels" in drawn) == (tokens is not None)
    assert tokens is None or drawn["labels"].shape == (3 * tokens,)
    assert bool(torch.isfinite(loss))
    assert not workload.trains_by_stand_in


def test_both_heads_of_a_model_with_two_are_trained():
    lm_loss, mc_loss = torch.ones((), requires_grad=True), torch.ones((), requires_grad=True)

    assert own_loss({"loss": lm_loss, "mc_loss": mc_loss}).item() == 2.0


def test_loss_with_a_number_per_sample_is_trained_by_its_mean():
    losses = torch.tensor([1.0, 3.0], requires_grad=True)

    assert own_loss({"loss": losses}).item() == 2.0


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("ssd300_vgg16", {"boxes", "labels"}),
        ("maskrcnn_resnet50_fpn", {"boxes", "labels", "masks"}),
        ("keypointrcnn_resnet50_fpn", {"boxes", "labels", "keypoints"}),
    ],
)
def test_targets_of_a_detector_lie_inside_of_its_images(name, takes):
    spec = read_spec(name, {"phase": "train", "image_size": 96})
    workload = Workload(spec, torch.device("cpu"), filled=False)
    images, targets = workload._inputs(3).call[0]

    assert (len(images), len(targets)) == (3, 3)
    assert workload.input_shape() == "3x96x96"
    for target in targets:
        left, top, right, bottom = target["boxes"].unbind(1)
        assert set(target) == takes
        assert bool(((left >= 0) & (left < right) & (right <= 96) & (top >= 0) & (top < bottom) & (bottom <= 96)).all())
        assert int(target["labels"].min()) > 0
    assert not torch.equal(targets[0]["boxes"], targets[1]["boxes"])


def test_detector_trains_by_the_sum_of_its_losses(tmp_path, ask):
    parts = {
        "classification": torch.ones((), requires_grad=True),
        "bbox_ctrness": torch.full((), 2.0, requires_grad=True),
    }
    ran = ask(tmp_path, "ssdlite320_mobilenet_v3_large", "--image-size", 320, "--batch-sizes", 2, *TRAIN)

    assert float(own_loss(parts)) == 3.0
    assert ran.status == 0, ran.err
    (row,) = ran.record("*-train-*").rows
    assert (row.output.result, row.seen) == ("loss", ("several_inputs",))
    assert "7 objects as targets, drawn at random" in " ".join(ran.out.split())


def test_stand_in_loss_of_segmentation_is_reported(tmp_path, ask):
    ran = ask(tmp_path, "lraspp_mobilenet_v3_large", "--image-size", 64, "--batch-sizes", 2, *TRAIN)

    assert ran.status == 0, ran.err
    assert "the loss is a stand-in: the mean square of the outputs" in " ".join(ran.out.split())


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])  # adagrad has its state before its first step
def test_a_scaler_of_gradients_has_found_its_scale_before_anything_is_measured(optimizer):
    asked = {"phase": "train", "dtype": "amp-fp16", "optimizer": optimizer}
    workload = Workload(read_spec(SMALL, asked), torch.device("cpu"))
    scaler = workload._training._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    with torch.enable_grad():
        batch = workload.batch(8)

    assert scaler.get_scale() < 2**40
    assert len(workload._training.optimizers[0].state) == 4
    assert workload.check_training(batch).result == "loss"


def test_a_model_that_returns_a_loss_is_trained_by_that():
    import transformers

    loss = torch.ones((), requires_grad=True)

    assert own_loss({"loss": loss, "scores": torch.ones(2, 3)}) is loss
    assert own_loss([loss, torch.ones(2, 3)]) is loss
    assert own_loss(transformers.modeling_outputs.SequenceClassifierOutput(loss=loss)) is loss


def outputs_of(kind, layer, x, labels):
    logits = layer(x)
    loss = cross_entropy(logits, labels)
    auxiliary = next(layer.parameters()).square().mean()
    return {
        "last": (logits, loss),
        "named otherwise": {"logits": logits, "total": loss},
        "of a nested output": (loss + auxiliary, [logits, {"shares": logits.softmax(1)}])[::-1],
        "with a further layer": (loss, nn.Linear(3, 3)(logits)),
        "first": (loss, logits.softmax(1)),
        "auxiliary": (logits, auxiliary),
        "two": (logits, loss, auxiliary),
        "two alone": (loss, auxiliary),
        "sum and parts": (loss + auxiliary, loss, auxiliary),
        "alone": {"logits": logits.detach(), "total": loss},
    }[kind]


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("last", 1),
        ("named otherwise", "total"),
        ("of a nested output", 1),  # the shares are no part of the loss, but the logits are
        ("with a further layer", None),
        ("first", 0),
        ("auxiliary", None),
        ("two", None),
        ("two alone", None),
        ("sum and parts", 0),
        ("alone", "total"),
    ],
)
def test_loss_is_the_scalar_that_depends_on_all_other_outputs(kind, place):
    output = outputs_of(kind, nn.Linear(8, 3), torch.randn(4, 8), torch.tensor([0, 1, 2, 0]))

    assert place_of_loss(parts_of(output)) == place


class Quantises(nn.Module):
    """Returns a loss of its codes, which does not depend on the decoder, and the decoded input."""

    def __init__(self, *, named):
        super().__init__()
        self.encoder, self.decoder, self.named = nn.Linear(8, 8), nn.Linear(8, 8), named

    def forward(self, x):
        codes = self.encoder(x)
        loss, decoded = (codes - codes.detach().round()).square().mean(), self.decoder(codes)
        return {"loss": loss, "decoded": decoded} if self.named else (loss, decoded)


@pytest.mark.parametrize("named", [True, False])
def test_first_scalar_is_the_loss_only_if_it_is_named_or_depends_on_the_rest(named):
    model = Quantises(named=named)
    training = Training(model, read_spec("resnet18", {"phase": "train"}), torch.device("cpu"))
    training.step_of(model)(torch.randn(4, 8))

    assert training.loss_is_own is named


def test_field_named_loss_is_the_loss_of_a_named_tuple():
    class Output(NamedTuple):
        loss: torch.Tensor
        decoded: torch.Tensor

    model = nn.Linear(8, 8)
    training = Training(model, read_spec("resnet18", {"phase": "train"}), torch.device("cpu"))
    training.step_of(lambda x: Output(x.square().mean() + model.bias.sum(), model(x)))(torch.randn(4, 8))

    assert training.loss_is_own


def test_loss_in_first_place_beside_other_losses_is_not_the_only_one():
    loss, other = (layer(torch.ones(2, 8)).sum() for layer in (nn.Linear(8, 1), nn.Linear(8, 1)))

    assert own_loss((loss, other)) is None
    assert own_loss((loss, other.detach())) is loss


def test_stand_in_optimizer_of_sparse_gradients_has_no_momentum():
    workload = Workload(read_spec(f"{MODELS}/plain.py:sparse_bag", {"phase": "train"}), torch.device("cpu"))

    assert workload._training.optimizers[0].defaults["momentum"] == 0


def test_model_that_returns_its_logits_and_its_loss_trains_by_that():
    workload = Workload(read_spec(f"{MODELS}/plain.py:logits_and_loss", {"phase": "train"}), torch.device("cpu"))

    with torch.enable_grad():
        workload.batch(4)()

    assert not workload.trains_by_stand_in


def test_checkpointing_uses_the_implementation_of_the_library(tmp_path):
    import transformers

    config = transformers.BertConfig(**_TINY | {"num_hidden_layers": 2})
    config.save_pretrained(tmp_path / "tiny")
    asked = {"phase": "train", "grad_checkpoint": True}

    encoder = Workload(read_spec(f"hf:{tmp_path}/tiny", {**asked, "sequence_length": 8}), torch.device("cpu"))
    vision = Workload(read_spec("timm:test_vit", asked), torch.device("cpu"))
    with torch.enable_grad():
        encoder.batch(2)()

    assert encoder._module.is_gradient_checkpointing
    assert vision._module.grad_checkpointing


@pytest.mark.parametrize(
    ("model", "more", "expected"),
    [
        ("quantized_resnet18", ("--phase", "train"), "quantized_resnet18 computes in int8"),
        (f"{MODELS}/compiled.py:nothing_to_train", ("--phase", "train"), "has nothing to train"),
        ("resnet18", ("--phase", "train", "--grad-checkpoint"), "--grad-checkpoint: resnet18 does not offer it"),
        ("resnet18", ("--phase", "train", "--mode", "cudagraph"), "--mode cudagraph captures inference"),
        ("resnet18", ("--phase", "train", "--dtype", "fp16"), "--phase train in pure fp16 comes to NaN"),
        ("traced.pt", ("--phase", "train", "--input-size", "8"), "traced.pt holds a program for inference"),
        ("resnet18", ("--optimizer", "adamw"), "--optimizer and --grad-checkpoint are for --phase train"),
        ("resnet18", ("--clip", "1"), "--clip is for --phase train"),
        ("resnet18", ("--accumulate", "4"), "--accumulate and --effective-batch are for --phase train"),
        ("resnet18", ("--effective-batch", "64"), "--accumulate and --effective-batch are for --phase train"),
        ("resnet18", ("--phase", "train", "--accumulate", "0"), "--accumulate: 0 is not between 1"),
        ("resnet18", ("--phase", "train", "--clip", "0"), "--clip: '0' is not above zero"),
        ("resnet18", ("--phase", "train", "--optimizer", "adamv"), "torch.optim has no 'adamv': did you mean"),
        ("resnet18", ("--phase", "train", "--optimizer", "adam w"), "'adam w' is not the name of an optimizer"),
        ("resnet18", ("--phase", "train", "--optimizer", "LBFGS"), "evaluates the model several times a step"),
        ("resnet18", ("--phase", "train", "--optimizer", "sparseadam"), "this model has dense ones"),
        ("resnet18", ("--phase", "train", "--optimizer", "muon"), "does not take the weights of this model"),
    ],
)
def test_impossible_training_request_is_refused_in_one_line(tmp_path, ask, model, more, expected):
    torch.jit.save(torch.jit.trace(torch.nn.Linear(8, 2), torch.ones(1, 8)), tmp_path / "traced.pt")

    named = tmp_path / model if model == "traced.pt" else model
    ask(tmp_path, named, "--device", "cpu", "--quiet", *more).check_refused(2, expected)
