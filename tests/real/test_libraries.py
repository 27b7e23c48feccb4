"""Models of timm and of transformers, by name or from their configuration, without downloads."""

import json
from tempfile import TemporaryDirectory

import pytest
import torch
from support.command import ENVIRONMENT, QUICK, command, run_program
from support.configs import save_config

from tputfind.errors import BadRequest
from tputfind.record.spec import read_spec
from tputfind.worker.models import find_model

LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
CONFIGS = {
    "bert": LAYERS | {"vocab_size": 99, "max_position_embeddings": 40},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 99, "n_positions": 64},
    "vit": LAYERS | {"image_size": 32, "patch_size": 16},
}


def test_a_model_of_timm_is_timed_at_its_own_size(tmp_path, ask):
    ran = ask(tmp_path, "timm:test_resnet", "--device", "cpu", "--batch-sizes", "1,16", *QUICK)

    assert ran.status == 0, ran.err
    record = ran.record()
    import timm

    own = timm.get_pretrained_cfg("test_resnet").input_size
    assert record.input_shape == "x".join(map(str, own))
    assert record.parameters == sum(p.numel() for p in timm.create_model("test_resnet").parameters())
    assert [row.output.result for row in record.rows] == ["small", "right"]


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_a_model_of_timm_takes_another_size_and_number_of_channels(name):
    spec = read_spec(f"timm:{name}", {"input_size": "1x64x96"})
    module, (inputs, _) = find_model(spec).build()

    assert inputs[0].sample_shape == (1, 64, 96)
    assert module.eval()(torch.randn(2, 1, 64, 96)).shape == (2, module.num_classes)


@pytest.mark.parametrize(
    ("config", "asked", "shape"),
    [
        ("bert", (), "40+40"),
        ("gpt2", ("--sequence-length", 16), "16+16"),
        ("vit", ("--image-size", 64), "3x64x64"),
    ],
)
def test_a_model_of_transformers_is_timed_from_its_configuration(tmp_path, ask, config, asked, shape):
    name = save_config(tmp_path / "tiny", config, **CONFIGS[config])

    ran = ask(tmp_path, name, "--device", "cpu", "--batch-sizes", "1,16", *asked, *QUICK)

    assert ran.status == 0, ran.err
    assert ran.record().input_shape == shape
    assert [row.output.result for row in ran.record().rows] == ["small", "right"]


def test_the_step_of_a_decoder_is_the_prefill(tmp_path):
    name = save_config(tmp_path / "tiny", "gpt2", **CONFIGS["gpt2"])
    module, (_, keywords) = find_model(read_spec(name, {"sequence_length": 8})).build()
    tokens = torch.ones(2, 8, dtype=torch.int64)

    output = module.eval()(**keywords | {"input_ids": tokens, "attention_mask": tokens})

    assert type(module).__name__ == "GPT2LMHeadModel"
    assert output.logits.shape == (2, 1, 99)
    assert output.past_key_values.get_seq_length() == 8


def test_weights_in_the_configuration_folder_are_used(tmp_path):
    import transformers

    saved = transformers.BertModel(transformers.BertConfig(**CONFIGS["bert"]))
    saved.save_pretrained(tmp_path / "mine")

    module, _ = find_model(read_spec(f"hf:{tmp_path}/mine", {"weights": "DEFAULT"})).build()
    again, _ = find_model(
        read_spec(f"hf:{tmp_path}/mine", {"weights": str(tmp_path / "mine" / "model.safetensors")})
    ).build()

    for built in (module, again):
        assert all(torch.equal(tensor, saved.state_dict()[name]) for name, tensor in built.state_dict().items())


def test_tokens_are_as_many_as_the_positions_of_the_model_reach_for():
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    with TemporaryDirectory() as folder:
        save_config(folder, "roberta", **sizes, vocab_size=99, max_position_embeddings=42)
        module, (_, inputs) = find_model(read_spec(f"hf:{folder}", {})).build()
        with pytest.raises(BadRequest, match="takes up to 40, not 41"):
            find_model(read_spec(f"hf:{folder}", {"sequence_length": 41})).build()

    assert inputs["input_ids"].sample_shape == (40,)  # two of 42 positions come before the first token
    tokens = torch.full((1, 40), 5)
    assert module.eval()(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state.shape == (
        1,
        40,
        32,
    )


def test_a_vision_model_that_takes_any_size_is_given_one():
    with TemporaryDirectory() as folder:
        save_config(folder, "resnet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
        _, (_, own) = find_model(read_spec(f"hf:{folder}", {})).build()
        module, (_, asked) = find_model(read_spec(f"hf:{folder}", {"input_size": "1x64x96"})).build()

    assert own["pixel_values"].sample_shape == (3, 224, 224)
    assert asked["pixel_values"].sample_shape == (1, 64, 96)
    assert module.eval()(torch.randn(2, 1, 64, 96)).logits.shape[0] == 2


def test_model_with_changed_configuration_is_not_resumed(tmp_path, ask):
    save_config(tmp_path / "tiny", "bert", **CONFIGS["bert"])
    asked = (f"hf:{tmp_path}/tiny", "--device", "cpu", "--batch-sizes", "1,4", "--sequence-length", 8, *QUICK)
    first = ask(tmp_path, *asked, "--save", "first.json", "--no-save")
    shortened = (tmp_path / "first.json").read_text().replace('"finished": "', '"finished": null, "x": "')
    (tmp_path / "cut.json").write_text(shortened)
    config = tmp_path / "tiny" / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 1'))

    again = ask(tmp_path, "--resume", "cut.json")

    assert first.status == 0, first.err
    assert again.status == 2
    assert "was changed" in again.err


def test_folder_without_configuration_does_not_hide_type_of_same_name(tmp_path, monkeypatch):
    (tmp_path / "mobilenet_v2").mkdir()
    monkeypatch.chdir(tmp_path)

    module, _ = find_model(read_spec("hf:mobilenet_v2", {})).build()

    assert type(module).__name__.startswith("MobileNetV2")


@pytest.fixture(scope="module")
def configurations(tmp_path_factory):
    """Create folders with transformers configurations, some of them invalid."""
    folder = tmp_path_factory.mktemp("configurations")
    for name, more in {
        "tiny": {},
        "quantized": {"quantization_config": {"bits": 4}},
        "renamed": {"architectures": ["BertForDreams"]},
    }.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"model_type": "bert"} | CONFIGS["bert"] | more))
    return folder


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["timm:test_resnetx"], "did you mean timm:test_resnet"),
        (["timm:test_resnet", "--weights", "none.pth"], "there is no file 'none.pth'"),
        (["timm:test_resnet", "--input-size", "64"], "takes samples such as 3x160x160"),
        (["timm:test_resnet", "--sequence-length", "64"], "--sequence-length is for hf: models"),
        (["hf:bertt"], "did you mean hf:bert"),
        (["hf:nobody/nothing"], "only --weights DEFAULT fetches"),
        (["hf:tiny", "--image-size", "64"], "takes tokens: --sequence-length says how many"),
        (["hf:quantized"], "is quantized, which random weights are not"),
        (["hf:renamed"], "transformers has no class 'BertForDreams'"),
        (["hf:tiny", "--sequence-length", "41"], "takes up to 40, not 41"),
        (["hf:bark"], "hf:bark: BarkModel has no forward pass"),
    ],
)
def test_impossible_library_model_is_refused_in_one_line(configurations, ask, arguments, expected):
    model, *more = arguments
    folder = configurations / model.removeprefix("hf:")
    named = f"hf:{folder}" if folder.exists() else model
    ask(configurations, named, *more, "--device", "cpu", "--quiet").check_refused(2, expected)


@pytest.mark.parametrize(("model", "package"), [("timm:resnet18", "timm"), ("hf:bert", "transformers")])
def test_missing_library_is_named_with_its_installation(tmp_path, model, package):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {package!r}:\n"
        f"            raise ModuleNotFoundError(name={package!r})\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    environment = ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}"}

    ran = run_program([*command(), model, "--quiet", "--device", "cpu"], tmp_path, environment, timeout=100)

    assert ran.returncode == 2
    assert f"{package} is not installed (pip install 'tputfind[{model.partition(':')[0]}]')" in ran.stderr
