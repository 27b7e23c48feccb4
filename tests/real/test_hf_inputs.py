"""The inputs of transformers models: drawn from ``forward`` and the configuration of any model."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.configs import save_config

from tputfind.errors import BadRequest
from tputfind.record.spec import read_spec
from tputfind.worker.models import find_model
from tputfind.worker.workload import Workload

LAYER = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = LAYER | {"vocab_size": 99, "max_position_embeddings": 48}
VISION = LAYER | {"image_size": 32, "patch_size": 16}
DECODER = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64} | {
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "vocab_size": 99,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
LLAMA = TEXT | {"model_type": "llama", "num_key_value_heads": 2}
HUBERT = LAYER | {"vocab_size": 9, "conv_dim": [8, 8], "conv_stride": [5, 4], "conv_kernel": [10, 8]}
HUBERT |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
VISION_OF_QWEN = {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 32, "patch_size": 14, "mlp_ratio": 2}
TEXT_OF_QWEN = LLAMA | {
    "model_type": "qwen2_vl_text",
    "max_position_embeddings": 112,
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]},
}
CONFIGS = {
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 99}
    | {"decoder_start_token_id": 0},
    "bart": DECODER | {"max_position_embeddings": 40},
    "whisper": DECODER | {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 12},
    "clip": {
        "text_config": TEXT | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        "vision_config": VISION,
    },
    "llava": {
        "vision_config": VISION | {"model_type": "clip_vision_model"},
        "text_config": LLAMA,
        "image_token_index": 98,
    },
    "qwen2_vl": {"text_config": TEXT_OF_QWEN, "vision_config": VISION_OF_QWEN, "image_token_id": 98},
    "yolos": LAYER | {"image_size": [32, 48], "patch_size": 16, "num_detection_tokens": 5},
    "hubert": HUBERT,
    "speech-encoder-decoder": {
        "encoder": HUBERT | {"model_type": "hubert"},
        "decoder": TEXT | {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
    },
    "ibert": TEXT | {"pad_token_id": 1},
    "perceiver": {"image_size": 24, "num_latents": 4, "d_latents": 32, "num_blocks": 1}
    | {"num_self_attends_per_block": 1},
    "videomae": VISION | {"num_frames": 4, "tubelet_size": 2},
    "musicgen": {
        "text_encoder": {"model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2},
        "audio_encoder": {"model_type": "encodec", "hidden_size": 16, "num_filters": 4, "codebook_size": 64}
        | {"codebook_dim": 16, "num_lstm_layers": 1, "upsampling_ratios": [2, 2]},
        "decoder": {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        | {"ffn_dim": 32, "num_codebooks": 4},
        "architectures": ["MusicgenForConditionalGeneration"],
    },
    "qwen2_audio": {
        "audio_config": {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32},
        "text_config": LLAMA | {"model_type": "qwen2", "max_position_embeddings": 1024},
        "audio_token_index": 98,
    },
}

SERIES = {"prediction_length": 4, "context_length": 6, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1} | {
    "num_time_features": 2,
    "num_dynamic_real_features": 1,
    "num_static_real_features": 2,
    "num_static_categorical_features": 1,
    "cardinality": [5],
    "embedding_dimension": [2],
    "lags_sequence": [1, 2, 3],
}
SPOKEN = (
    LAYER
    | {"vocab_size": 9, "conv_dim": [8, 8], "conv_stride": [5, 4], "conv_kernel": [10, 8]}
    | {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "num_mel_bins": 8,
        "speech_decoder_prenet_units": 16,
        "max_text_positions": 64,
    }
)
GEMMA = LLAMA | {"head_dim": 16, "max_position_embeddings": 64}
FURTHER = {
    "TimeSeriesTransformerForPrediction": ("time_series_transformer", SERIES),
    "SpeechT5ForTextToSpeech": ("speecht5", SPOKEN),
    "Gemma3ForConditionalGeneration": (
        "gemma3",
        {
            "text_config": GEMMA | {"model_type": "gemma3_text", "layer_types": ["full_attention"]},
            "vision_config": VISION | {"model_type": "siglip_vision_model", "patch_size": 8},
            "mm_tokens_per_image": 4,
            "image_token_index": 98,
        },
    ),
    "PaliGemmaForConditionalGeneration": (
        "paligemma",
        {
            "text_config": GEMMA | {"model_type": "gemma"},
            "vision_config": VISION | {"model_type": "siglip_vision_model", "projection_dim": 32},
            "projection_dim": 32,
            "image_token_index": 98,
        },
    ),
    "GraniteSpeechForConditionalGeneration": (
        "granite_speech",
        {
            "text_config": LLAMA | {"model_type": "granite", "max_position_embeddings": 1024},
            "encoder_config": {"num_layers": 1, "hidden_dim": 32, "input_dim": 160, "output_dim": 8, "num_heads": 2},
            "projector_config": LAYER | {"model_type": "blip_2_qformer", "encoder_hidden_size": 32},
            "audio_token_index": 98,
        },
    ),
    "ColQwen2ForRetrieval": (
        "colqwen2",
        {
            "embedding_dim": 8,
            "vlm_config": {
                "model_type": "qwen2_vl",
                "text_config": TEXT_OF_QWEN,
                "vision_config": VISION_OF_QWEN,
                "image_token_id": 98,
            },
        },
    ),
    "VideoLlama3ForConditionalGeneration": (
        "video_llama_3",
        {
            "text_config": LLAMA | {"model_type": "qwen2", "max_position_embeddings": 1024},
            "vision_config": LAYER | {"patch_size": 14},
            "image_token_id": 98,
            "video_token_id": 97,
        },
    ),
    "LlamaForSequenceClassification": ("llama", TEXT | {"num_key_value_heads": 2}),
}
"""By class: its type and a small configuration."""


@pytest.fixture
def saved(tmp_path):
    return lambda kind, **options: save_config(tmp_path / "tiny", kind, **CONFIGS[kind] | options)


def outputs(name, options=None, batch_sizes=(1, 2)):
    """Return the shape of a sample, and the outputs at each batch size."""
    workload = Workload(read_spec(name, options or {}), torch.device("cpu"))
    with torch.inference_mode():
        batches = [workload.batch(size) for size in batch_sizes]
        ran = [batch() for batch in batches]
    for batch in batches:
        workload.check_samples(batch)
    return workload.input_shape(), ran


@pytest.mark.parametrize(
    ("config", "shape", "kind", "output"),
    [
        ("t5", "512+512+512", "T5ForConditionalGeneration", "logits"),
        ("bart", "40+40+40", "BartForConditionalGeneration", "logits"),
        ("whisper", "8x40+12", "WhisperForConditionalGeneration", "logits"),
        ("clip", "48+3x32x32+48", "CLIPModel", "text_embeds"),
        ("llava", "48+3x32x32+48", "LlavaForConditionalGeneration", "logits"),
        ("qwen2_vl", "112+112+256x1176+3+112", "Qwen2VLForConditionalGeneration", "logits"),
        ("yolos", "3x32x48", "YolosForObjectDetection", "pred_boxes"),
        ("hubert", "16000", "HubertModel", "last_hidden_state"),
        ("speech-encoder-decoder", "16000+48", "SpeechEncoderDecoderModel", "logits"),
        ("ibert", "46+46", "IBertModel", "last_hidden_state"),
        ("perceiver", "3x24x24", "PerceiverForImageClassificationLearned", "logits"),
        ("videomae", "4x3x32x32", "VideoMAEModel", "last_hidden_state"),
    ],
)
def test_inputs_of_a_configuration_run_at_any_batch_size(saved, config, shape, kind, output):
    name = saved(config)

    found, ran = outputs(name)

    assert found == shape
    assert type(find_model(read_spec(name, {})).build()[0]).__name__ == kind
    assert [len(getattr(each, output)) for each in ran] == [1, 2]


def parts(model):
    """Return the inputs that the tool makes for a transformers model, built without memory for its weights."""
    with torch.device("meta"):
        return find_model(read_spec(model, {})).build()[1][1]


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        ("hf:rf_detr", {"pixel_values": (3, 560, 560)}),  # 518 is no multiple of 4 windows of patches of 14
        ("hf:muse_spark_audio", {"input_values": (17280,)}),  # 9 tokens of 1920 samples
        ("hf:xcodec2", {"input_values": (1, 16000), "input_features": (50, 160), "input_features_mask": (50,)}),
        ("hf:omdet-turbo", {"tasks_input_ids": (77,), "classes_input_ids": (77,), "classes_structure": ()}),
    ],
)
def test_input_sizes_fit_the_divisors_of_the_model_and_each_other(model, shapes):
    assert {name: part.sample_shape for name, part in parts(model).items() if name in shapes} == shapes


@pytest.mark.parametrize(
    ("kind", "phase", "shapes"),
    [
        (
            "TimeSeriesTransformerForPrediction",
            "infer",
            {"past_time_features": (9, 3), "future_values": (4,), "future_time_features": (4, 3)}
            | {"static_categorical_features": (1,), "static_real_features": (2,)},
        ),
        ("TimeSeriesTransformerForPrediction", "train", {"future_values": (4,)}),
        ("SpeechT5ForTextToSpeech", "infer", {"input_ids": (64,), "decoder_input_values": (512, 8)}),
        ("SpeechT5ForTextToSpeech", "train", {"labels": (1024, 8)}),
        ("Gemma3ForConditionalGeneration", "infer", {"input_ids": (64,), "token_type_ids": (64,)}),
        ("PaliGemmaForConditionalGeneration", "infer", {"input_ids": (64,), "token_type_ids": (64,)}),
        ("GraniteSpeechForConditionalGeneration", "infer", {"input_ids": (674,), "input_features_mask": (162,)}),
        ("ColQwen2ForRetrieval", "infer", {"pixel_values": (256, 1176), "input_ids": (112,)}),
        ("VideoLlama3ForConditionalGeneration", "infer", {"input_ids": (768,), "image_merge_sizes": ()}),
        ("LlamaForSequenceClassification", "infer", {"input_ids": (48,)}),
    ],
)
def test_further_arguments_have_shapes_that_fit_the_model(tmp_path, kind, phase, shapes):
    model_type, config = FURTHER[kind]
    name = save_config(tmp_path / "tiny", model_type, **config, architectures=[kind])
    workload = Workload(read_spec(name, {"phase": phase}), torch.device("cpu"))

    with torch.inference_mode(mode=phase == "infer"):
        batch = workload.batch(2)
        batch()

    found = {name: tuple(part.shape[1:]) for name, part in batch._inputs[1].items() if name in shapes}
    assert found == shapes
    assert workload.trains_by_stand_in is False


def test_image_of_a_detector_is_larger_than_those_of_its_backbone(tmp_path):
    name = save_config(tmp_path / "tiny", "grounding-dino", architectures=["GroundingDinoForObjectDetection"])

    assert parts(name)["pixel_values"].sample_shape == (3, 640, 640)


def test_input_without_a_rule_is_left_out_and_named(tmp_path):
    source = find_model(read_spec(save_config(tmp_path / "tiny", "phi4_multimodal"), {}))

    left = [notice.seen for notice in source.caveats if notice.kind == "left_out"]
    assert any("no rule draws image_pixel_values" in seen for seen in left)


def test_cache_is_disabled_for_models_without_layer_count():
    assert parts("hf:blt")["use_cache"] is False


def test_tokens_of_a_decoder_stay_within_its_positions(saved):
    name = saved("whisper")

    _, (_, inputs) = find_model(read_spec(name, {"sequence_length": 7})).build()
    assert inputs["decoder_input_ids"].sample_shape == (7,)
    with pytest.raises(BadRequest, match=r"the decoder of .* takes up to 12, not 13"):
        find_model(read_spec(name, {"sequence_length": 13})).build()


def test_sequence_length_of_an_encoder_decoder_is_that_of_both(saved):
    _, (_, inputs) = find_model(read_spec(saved("t5"), {"sequence_length": 24})).build()

    assert {name: drawn.sample_shape for name, drawn in inputs.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "decoder_input_ids"), (24,)
    )


@pytest.mark.parametrize(
    ("config", "shape"), [("clip", "48+3x64x64+48"), ("llava", "48+3x64x64+48"), ("yolos", "3x64x64")]
)
def test_image_size_holds_wherever_the_configuration_has_it(saved, config, shape):
    assert outputs(saved(config), {"image_size": 64})[0] == shape


def test_tokens_of_several_codebooks_are_rows_of_a_sample(saved):
    _, ran = outputs(saved("musicgen"), {"sequence_length": 8})

    assert [each.logits.shape for each in ran] == [(4, 8, 64), (8, 8, 64)]


def test_audio_that_the_forward_pass_projects_itself_is_in_the_prompt(saved):
    shape, _ = outputs(saved("qwen2_audio"), {"sequence_length": 8})

    assert shape == "758+128x3000+758+3000"


def test_features_are_counted_in_fp32_whatever_the_configuration_says(saved):
    source = find_model(read_spec(saved("llava", dtype="bfloat16"), {}))

    assert [notice.kind for notice in source.caveats if notice.kind == "left_out"] == []
    assert (source.build()[1](1)["input_ids"] == 98).sum() == 4


def test_training_keeps_no_cache(saved):
    _, made = find_model(read_spec(saved("llava"), {"phase": "train"})).build()

    assert made(2)["use_cache"] is False


def test_image_size_of_a_language_model_changes_its_prompt(saved):
    shape, _ = outputs(saved("qwen2_vl"), {"image_size": 112, "sequence_length": 5})

    assert shape == "21+21+64x1176+3+21"  # 8 x 8 patches, 2 x 2 of them merged, and 5 tokens


def test_prompt_holds_as_many_image_tokens_as_features_and_no_more(saved):
    make = find_model(read_spec(saved("llava"), {})).build()[1]

    tokens = make(3)["input_ids"]

    assert (tokens == 98).sum(1).tolist() == [4, 4, 4]
    assert tokens.shape == (3, 48)


def test_images_that_do_not_fit_the_text_are_left_out_and_named(saved):
    name = saved("qwen2_vl", vision_config=VISION_OF_QWEN | {"hidden_size": 48})
    source = find_model(read_spec(name, {}))

    shape, _ = outputs(name)

    assert shape == "112+112"
    left_out = [notice.seen for notice in source.caveats if notice.kind == "left_out"]
    assert left_out == ["pixel_values is left out: its features are 48 wide, its tokens 32"]


def test_measured_class_is_named_unless_the_configuration_names_it(saved):
    unnamed = find_model(read_spec(saved("clip"), {})).caveats
    named = find_model(read_spec(saved("clip", architectures=["CLIPModel"]), {})).caveats

    assert ["is measured as CLIPModel" in notice.seen for notice in unnamed] == [True]
    assert named == ()


def test_notices_of_a_model_fit_two_lines():
    caveats = find_model(read_spec("hf:audio-spectrogram-transformer", {})).caveats

    assert [len(f"{notice.seen}{notice.cause}{notice.advice}") <= 138 for notice in caveats] == [True]


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("hf:bark", "hf:bark: BarkModel has no forward pass"),
        ("hf:sam2_video", "takes as inference_session .describe every input: --input inference_session:float:Bx"),
    ],
)
def test_refusal_names_the_argument_and_an_option(model, line):
    with torch.device("meta"), pytest.raises(BadRequest, match=line):
        find_model(read_spec(model, {})).build()


@settings(max_examples=15)
@given(
    positions=st.integers(8, 80),
    decoder_positions=st.integers(4, 80),
    vocabulary=st.integers(12, 60),
    asked=st.none() | st.integers(1, 8),
)
def test_tokens_stay_within_vocabulary_and_positions(tmp_path_factory, positions, decoder_positions, vocabulary, asked):
    name = save_config(
        tmp_path_factory.mktemp("led"),
        "led",
        **DECODER | {"vocab_size": vocabulary},
        max_encoder_position_embeddings=positions,
        max_decoder_position_embeddings=decoder_positions,
        attention_window=4,
    )

    _, (_, inputs) = find_model(read_spec(name, {"sequence_length": asked})).build()

    encoder, decoder = inputs["input_ids"], inputs["decoder_input_ids"]
    assert encoder.sample_shape == (asked or positions,)
    assert decoder.sample_shape == (min(asked or decoder_positions, decoder_positions),)
    assert encoder.below == decoder.below == vocabulary
