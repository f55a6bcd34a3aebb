"""Script of a rehearsal: the overrides that fit an experiment to this machine, and what they leave out.

On GPUs that hold it: its real model and lengths, in two small rollout batches.
Elsewhere: a small model of its family, short texts and a few ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from bapo_lightning.configuration.compose import compose_run, composed_run
from bapo_lightning.configuration.machine import check_machine
from bapo_lightning.configuration.machine_rules import KERNELS
from bapo_lightning.configuration.plan import architecture
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.targets import TARGET
from bapo_lightning.configuration.validate import validate
from bapo_lightning.data.problems.prompts import PLACEHOLDER
from bapo_lightning.modules.policy.folder import PACKAGE_PREFIX
from bapo_lightning.system.errors import MachineError
from bapo_lightning.system.ranks.rank_group import uses_cuda
from bapo_lightning.system.run_folder.config_keys import differences

PRESET = "debug=rehearsal"
# Architecture for experiments that leave the model to the user.
ANY_FAMILY = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
LONGEST = {  # tokens; shorter ones of the experiment stay
    "max_prompt_tokens": 384,
    "max_new_tokens": 32,
    "partial_tokens": 8,
    "overlong_buffer": 8,
    "micro_batch_tokens": 768,  # an update has several micro-batches
}
GROUP_SIZE, ANSWERS = 4, 2  # responses to a problem, in training and in validation
MOST_PARALLEL = 2  # ranks of one tensor-parallel engine
KV_CACHE_BYTES = 64 << 20
SIZES = ("scale.", "trainer.", "rollout.", "callbacks.", "data.validation_samples.")  # beginnings of keys
MISSING = {"model.path": "rehearsal/model", "data.train.path": "rehearsal/train.jsonl"}


@dataclass(frozen=True)
class Script:
    """How one experiment is rehearsed here."""

    name: str
    config: RunConfig  # the experiment itself
    choices: Mapping[str, str]  # the file chosen in each group of the configuration
    overrides: Sequence[str]  # of the rehearsal, its experiment and preset among them
    sizes: Sequence[str]  # "key: before -> in the rehearsal"
    not_here: Sequence[str]  # what this machine cannot rehearse
    plain: dict[str, Any] = field(repr=False)  # resolved configuration of the rehearsal


def write_script(name: str, given: Sequence[str], folder: Path, in_small: bool = False) -> Script:
    """Prepares a rehearsal in a folder that exists: model, tables, overrides. `given` are further overrides
    of the experiment itself; `in_small` makes it small even if this machine holds the experiment. Raises
    ConfigError: the experiment, or the rehearsal on this machine, breaks a rule.
    """
    arguments = [f"experiment={name}", *given]
    composed = composed_run(arguments, with_hydra=True)
    arguments += [f"{key}={value}" for key, value in MISSING.items() if _is_missing(composed, key)]
    plain = compose_run(arguments)
    config = validate(plain, "ranks") if _is_elsewhere(plain["model"]) else validate(plain)
    is_whole = not in_small and _holds_it(config)
    overrides = [PRESET, *([] if is_whole else _in_small(config, folder))]
    rehearsed = validate(compose_run([*arguments, *overrides])).plain
    changed = differences(config.plain, rehearsed)
    sizes = [f"{key}: {before} -> {now}" for key, before, now in changed if key.startswith(SIZES)]
    not_here = [] if is_whole else list(_omitted_parts(config))
    choices = dict(composed.hydra.runtime.choices)
    return Script(name, config, choices, [*arguments, *overrides], sizes, not_here, rehearsed)


def _is_missing(config: DictConfig, key: str) -> bool:
    above, _, name = key.rpartition(".")
    return OmegaConf.is_missing(OmegaConf.select(config, above), name)


def _is_elsewhere(model: Mapping[str, Any]) -> bool:
    path = model["path"]
    return not (path.startswith(PACKAGE_PREFIX) or Path(path).exists() or model.get("made_by"))


def _holds_it(config: RunConfig) -> bool:
    if not uses_cuda(config.accelerator) or config.num_nodes > 1:
        return False
    with suppress(MachineError):
        check_machine(config)
        return True
    return False


def _in_small(config: RunConfig, folder: Path) -> Iterator[str]:
    scale = config.scale
    for key, most in LONGEST.items():
        yield f"scale.{key}={min(getattr(scale, key), most)}"
    yield f"scale.group_size={min(scale.group_size, GROUP_SIZE)}"
    for name in config.data.validation_samples:
        yield f"data.validation_samples.{name}={ANSWERS}"
    yield from _devices(config)
    yield from _engine(config)
    yield from _model_and_data(config, folder)


def _devices(config: RunConfig) -> Iterator[str]:
    yield f"trainer.devices={_num_ranks(config)}"
    yield "trainer.num_nodes=1"
    yield f"trainer.precision={config.trainer.options['precision']}"
    yield from (
        f"model.{name}={'null' if isinstance(value, str) else 'false'}"
        for name, value in _gpu_kernels(config)
    )


def _gpu_kernels(config: RunConfig) -> list[tuple[str, Any]]:
    if uses_cuda(config.accelerator):
        return []
    return [(name, value) for name, value in KERNELS if getattr(config.model, name) == value]


def _num_ranks(config: RunConfig) -> int:
    parallel = min(config.rollout.tensor_parallel_size, MOST_PARALLEL)
    wanted = min(config.num_ranks, 2 * parallel)
    return min(wanted, torch.cuda.device_count()) if uses_cuda("auto") else wanted


def _engine(config: RunConfig) -> Iterator[str]:
    rollout = config.rollout
    key = f"rollout.engine.{'' if rollout.sampling_engine is rollout.engine else 'make_engine.'}options"
    if (options := rollout.sampling_engine.options.get("options")) is not None:  # vLLM's
        yield f"{key}.dtype={options['dtype']}"
        yield f"{key}.tensor_parallel_size={min(rollout.tensor_parallel_size, MOST_PARALLEL)}"
        yield f"{key}.kv_cache_bytes={KV_CACHE_BYTES}"


def _model_and_data(config: RunConfig, folder: Path) -> Iterator[str]:
    path = config.model.path
    if _is_elsewhere(config.plain["model"]):
        known = ANY_FAMILY if path == MISSING["model.path"] else architecture(config.model)
        texts = str(config.data.prompt.node), *(problem["problem"] for problem in shipped_problems())
        write_small_model(known, texts, folder / "model")
        yield f"model.path={folder / 'model'}"
        yield "model.architecture=null"
    data = config.plain["data"]
    for key, node in (*tables(data["train"], "data.train"), *tables(data["validation"], "data.validation")):
        if not Path(node["path"]).exists():
            file = folder / f"{key}.jsonl"
            is_training = key.startswith("data.train")
            yield from (f"{key}.{text}" for text in write_table(node, is_training, file))


def _omitted_parts(config: RunConfig) -> Iterator[str]:
    ranks, path = _num_ranks(config), config.model.path
    if config.num_ranks > ranks:
        nodes = f" on {config.num_nodes} nodes" if config.num_nodes > 1 else ""
        yield f"{config.num_ranks} ranks{nodes}: {ranks} here"
    if (parallel := config.rollout.tensor_parallel_size) > MOST_PARALLEL:
        yield f"tensor_parallel_size={parallel}: {MOST_PARALLEL} here"
    if _is_elsewhere(config.plain["model"]) and path != MISSING["model.path"]:
        if not uses_cuda("auto"):
            yield "GPUs: their memory, CUDA's kernels, NCCL, the sleep of an engine that shares them"
        yield f"the weights of {path}: random ones of its family, two layers"
    yield from (f"model.{name}={value}: needs a GPU" for name, value in _gpu_kernels(config))
    for key, node in tables(config.plain["data"], "data"):
        if not Path(node["path"]).exists() and node["path"] != MISSING["data.train.path"]:
            yield f"{key}: shipped problems in the columns of {node['path']}"


SHIPPED = Path(__file__).with_name("problems.jsonl")
TABLE = "bapo_lightning.data.problems.table.problem_table"
HELD_OUT = 8  # of the shipped problems, the last ones: validation asks others than training
DIFFICULTY = 8  # of every problem
# Layouts of an answer's cell (`data.problems.columns`).
FORMS = {
    "text": "{}",
    "behind_marker": "So it is. {marker} {}",
    "last_box": "It is \\boxed{{{}}}.",
    "json_list": '["{}"]',
}


def shipped_problems() -> list[dict[str, str]]:
    """Returns the problems that ship, each with `problem` and `answer`."""
    with SHIPPED.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def tables(node: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the nodes that read a table, at and below `node`, by their dotted keys."""
    if not isinstance(node, Mapping):
        return
    if node.get(TARGET) == TABLE:
        yield key, node
        return
    for name, inner in node.items():
        yield from tables(inner, f"{key}.{name}")


def write_table(node: Mapping[str, Any], is_training: bool, file: Path) -> list[str]:
    """Writes shipped problems as JSON lines in a table's columns; returns what to override below its key."""
    problems = shipped_problems()
    if node["part"] is None:  # else a hash of the text separates the parts of one table
        problems = problems[:-HELD_OUT] if is_training else problems[-HELD_OUT:]
    rows = [
        _row(each["problem"], each["answer"], number, node["mapping"]) for number, each in enumerate(problems)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return [f"path={file}", "any_size=true", "config=null", "revision=null", "files=null"]


def _row(problem: str, answer: str, number: int, mapping: Mapping[str, Any]) -> dict[str, Any]:
    wrapper, form = mapping["wrapper"] or PLACEHOLDER, FORMS[mapping["answer_form"]]
    cells = {
        "problem": wrapper.replace(PLACEHOLDER, problem),
        "answer": form.format(answer, marker=mapping["answer_marker"]),
        "id": str(number),
        "source": "rehearsal",
        "difficulty": DIFFICULTY,
    }
    row: dict[str, Any] = {}
    for name, cell in cells.items():
        if mapping[name] is not None:
            _set(row, mapping[name], cell)
    for path in mapping["keep"]:
        _set(row, path, "")
    return row


def _set(row: dict[str, Any], path: str, cell: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        row = row.setdefault(name, {})
    row[last] = cell


# Sizes of config.json that are made small; any other key stays as the family has it. Heads of 32 are the
# smallest that vLLM's CPU kernels take, and four of them can be split over two ranks.
SHRUNK = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
END, PAD = "<|end|>", "<|pad|>"
# Whole texts as tokens, so that a random model answers in the form that verdicts ask for.
SPELT = ("\\boxed{1}", "\\boxed{2}", "#### 1", "#### 2")
NUM_TOKENS = 160  # of the tokenizer: few, so that a response of a few tokens often has an answer
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    f"{END}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_small_model(architecture: Mapping[str, Any], texts: Iterable[str], folder: Path) -> None:
    """Writes a model folder for a family's config.json, whose tokenizer can spell these texts."""
    tokenizer = small_tokenizer(texts)
    tokenizer.save_pretrained(folder)
    config = small_config(architecture, len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)


def small_config(architecture: Mapping[str, Any], vocab_size: int, eos: int | None, pad: int | None) -> Any:
    """Returns transformers' configuration of the family with small sizes."""
    shrunk = {key: value for key, value in architecture.items() if key not in ("architectures", "auto_map")}
    shrunk |= {key: size for key, size in SHRUNK.items() if key in architecture}
    heads = architecture["num_attention_heads"]
    if architecture.get("num_key_value_heads", heads) == heads and "num_key_value_heads" in architecture:
        shrunk["num_key_value_heads"] = shrunk["num_attention_heads"]
    if "layer_types" in shrunk:
        shrunk["layer_types"] = shrunk["layer_types"][: SHRUNK["num_hidden_layers"]]
    shrunk |= {"vocab_size": vocab_size, "eos_token_id": eos, "pad_token_id": pad, "bos_token_id": None}
    return AutoConfig.for_model(**shrunk)


def small_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Returns a byte-pair tokenizer of the bytes that occur in `texts`, with a chat template."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(vocab_size=NUM_TOKENS, special_tokens=[PAD, END], show_progress=False)
    tokenizer.train_from_iterator([*texts, *SPELT, TEMPLATE, "0123456789"], trainer)
    tokenizer.add_tokens([AddedToken(answer, normalized=False) for answer in SPELT])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=TEMPLATE
    )
