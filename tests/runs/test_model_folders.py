"""What a damaged model folder is answered with: one sentence before anything is started."""

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.configuration.compositions import composed, validated
from tests.damages import of_file

from bapo_lightning.configuration.plan import architecture
from bapo_lightning.configuration.sections import Model
from bapo_lightning.configuration.validate import validate
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.runs.inputs import read_inputs
from bapo_lightning.system.errors import BapoLightningError, DataError
from bapo_lightning.tools.evaluation.subject import find_subject
from bapo_lightning.tools.probe.weights import Weights

TINY = model_path("package://bapo_lightning/tiny_worlds/additions/model")
FILES = (
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip
OWN_CODE = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config"}}
RAISES = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ raise_exception('no') }}"


@pytest.fixture
def model(tmp_path):
    shutil.copytree(TINY, tmp_path / "model")
    return tmp_path / "model"


def told(model, *overrides):
    """What is said of the model; None of one that is taken."""
    try:
        read_inputs(validate(composed(f"model.path={model}", *overrides)))
    except BapoLightningError as error:
        return str(error)
    return None


def change(file, **fields):
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.mark.parametrize("some", [("halved", "list"), pytest.param((), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_no_damage_of_a_model_s_files_ends_in_a_traceback(name, some, model):
    content = (model / name).read_bytes()
    damages = of_file(content)
    for damage, changed in {name: damages[name] for name in some or damages}.items():
        (model / name).unlink()
        (model / name).mkdir() if changed is None else (model / name).write_bytes(changed)
        said = told(model)
        assert said is None or "Traceback" not in said, damage
        if damage in ("empty", "zeros", "list", "deep") and name in ("config.json", "model.safetensors"):
            assert said is not None and "model.path=" in said, damage
        shutil.rmtree(model / name) if changed is None else None
        (model / name).write_bytes(content)


def test_code_of_a_model_is_never_run_and_reported_in_one_sentence(model):
    (model / "code.py").write_text("open('ran', 'w')")
    change(model / "config.json", **OWN_CODE)
    assert "it needs its own code (auto_map), which is never run" in told(model)


def test_an_adapter_without_its_model_is_reported(model):
    (model / "model.safetensors").unlink()
    (model / "adapter_config.json").write_text("{}")
    assert "is only an adapter" in told(model)


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
PACKED = {"quant_method": "compressed-tensors", "config_groups": {"0": {"weights": {"num_bits": 4}}}}
QUANTIZED = {
    "fp8": ({"quantization_config": FP8}, "weights of 8 bits"),
    "gptq": ({"quantization_config": GPTQ}, "weights of 4 bits"),
    "bnb": ({"quantization_config": {"load_in_4bit": True, "load_in_8bit": False}}, "weights of 4 bits"),
    "mxfp4": ({"quantization_config": {"quant_method": "mxfp4"}}, "weights of 4 bits"),
    "compressed": ({"compression_config": PACKED}, "weights of 4 bits"),
    "an unknown one": ({"quantization_config": {"quant_method": "of tomorrow"}}, "quantized weights"),
    "within a part": ({"text_config": {"quantization_config": FP8}}, "weights of 8 bits"),
    "of no meaning": ({"quantization_config": {}}, "quantized weights"),
}


def refusals(model):
    """The sentence of each part of the package that reads a model folder."""
    for use in (
        lambda: validated(f"model.path={model}", "rollout=hf_child"),
        lambda: validated(f"model.path={model}", "model/lora=default"),
        lambda: architecture(Model.model_construct(path=str(model), architecture=None)),
        lambda: build_policy(ModelOptions(str(model)), 1.0),
        lambda: HFEngine(str(model), device="cpu"),
        lambda: find_subject(str(model)),
        lambda: Weights(str(model)).model,
    ):
        with pytest.raises(BapoLightningError) as refused:
            use()
        yield str(refused.value)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_weights_are_refused_in_one_sentence_by_whatever_reads_a_model(kind, model):
    settings, words = QUANTIZED[kind]
    change(model / "config.json", **settings)
    for said in refusals(model):
        assert f"{words} cannot be trained" in said and "use the unquantized model" in said
        assert said.count("cannot be trained") == 1


FEW_BITS = {
    "float8": ({"model.layers.0.mlp.up_proj.weight": torch.float8_e4m3fn}, "weights of 8 bits"),
    "int8": ({"model.layers.0.mlp.up_proj.weight": torch.int8}, "weights of 8 bits"),
    "scales alone": ({"model.layers.0.mlp.up_proj.weight_scale_inv": torch.float32}, "quantized weights"),
    "packed": ({"model.layers.0.mlp.up_proj.qweight": torch.int32}, "quantized weights"),
}


@pytest.mark.parametrize("kind", FEW_BITS)
def test_quantized_weights_without_a_word_in_config_json_are_refused(kind, model):
    changes, words = FEW_BITS[kind]
    weights = load_file(model / "model.safetensors")
    for name, dtype in changes.items():
        weights[name] = weights.get(name, torch.ones(4, 4)).to(dtype)
    save_file(weights, model / "model.safetensors")
    assert f"{words} cannot be trained" in told(model)


@pytest.mark.parametrize("template", [RAISES, "{% if %}", "{{ 1/0 }}", "{{ nothing.of.it }}"])
def test_a_template_that_raises_is_reported(template, model):
    change(model / "tokenizer_config.json", chat_template=template)
    assert "template" in told(model, "data/prompt=boxed")


@pytest.mark.slow
@pytest.mark.parametrize("field", ["vocab_size", "max_position_embeddings", "model_type", "eos_token_id"])
def test_a_field_of_another_type_ends_in_no_traceback(field, model):
    for value in ("x", None, -1, [], {}, 1e30):
        change(model / "config.json", **{field: value})
        told(model)


SIZES = {name: value for name, value in json.loads(Path(TINY, "config.json").read_text()).items()
         if type(value) in (int, float)}  # fmt: skip
OF_WEIGHTS = ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads")
WRONG = (-1, 0, 10**12, "x", None)


def build(model, does_sample):
    if does_sample:
        HFEngine(str(model), device="cpu")
    else:
        for on_meta in (True, False):  # as export and training do
            build_policy(ModelOptions(str(model)), 1.0, on_meta=on_meta)


@pytest.mark.parametrize("does_sample", [False, True])
def test_no_number_of_config_json_ends_what_builds_a_model_in_a_traceback(does_sample, model):
    for name, value in product(sorted(SIZES), WRONG):
        change(model / "config.json", **SIZES | {name: value})
        said = ""
        try:
            build(model, does_sample)
        except BapoLightningError as error:
            said = str(error)
            assert said.startswith((str(model), f"model.path={model}")), (name, value)
        if name in OF_WEIGHTS and (value in (-1, "x") or not does_sample):
            assert said, (name, value)


@pytest.mark.slow
@pytest.mark.parametrize("value", WRONG)
def test_no_number_of_config_json_ends_the_start_of_a_run_in_a_traceback(value, model):
    for name in SIZES:
        change(model / "config.json", **SIZES | {name: value})
        told(model)


LAYERS = SIZES["num_hidden_layers"]
# Number of layers, changes of weights, words of the answer; None of a warning.
MISFITS = {
    "a layer without weights": (LAYERS + 1, {},
                                rf"the files do not have model\.layers\.{LAYERS}\..* and 6 more\)"),
    "weights without a layer": (LAYERS - 1, {}, rf"has no layers for model\.layers\.{LAYERS - 1}\..* more\)"),
    "no norm": (LAYERS, {"model.norm.weight": None}, r"the files do not have model\.norm\.weight\)"),
    "another shape": (LAYERS, {"model.norm.weight": torch.ones(3)}, r"norm\.weight \[3\], not \[64\]\)"),
    "a weight of nothing": (LAYERS, {"model.other.weight": torch.ones(3)}, None),
}  # fmt: skip


@pytest.mark.parametrize("misfit", MISFITS)
def test_no_weight_is_drawn_at_random_or_left_out_in_silence(misfit, model, capfd):
    layers, weights, words = MISFITS[misfit]
    change(model / "config.json", num_hidden_layers=layers)
    named = load_file(model / "model.safetensors") | weights
    save_file({name: each for name, each in named.items() if each is not None}, model / "model.safetensors")
    if words is None:
        build_policy(ModelOptions(str(model)), 1.0)
        said = f"warning: {model}: the model has no place for model.other.weight\n"
        assert capfd.readouterr().err.count(said) == 1
        return
    with pytest.raises(DataError, match=f"^{model}: no model can be built .*{words}; correct config"):
        build_policy(ModelOptions(str(model)), 1.0)
    assert "LOAD REPORT" not in capfd.readouterr().err


def test_a_head_of_its_own_that_config_json_ties_is_refused(model):
    # The rank that reads it would train it, and no other rank or engine would have it.
    weights = load_file(model / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, model / "model.safetensors")
    build_policy(ModelOptions(str(model)), 1.0)
    save_file(weights | {"lm_head.weight": 2 * weights["lm_head.weight"]}, model / "model.safetensors")
    with pytest.raises(DataError, match=r"config\.json ties lm_head\.weight, the files do not\)"):
        build_policy(ModelOptions(str(model)), 1.0)


def test_layers_that_predict_further_tokens_may_be_left_out(model, capfd):
    change(model / "config.json", num_hidden_layers=LAYERS - 1, num_nextn_predict_layers=1)
    build_policy(ModelOptions(str(model)), 1.0)
    assert f"no place for model.layers.{LAYERS - 1}." in capfd.readouterr().err
