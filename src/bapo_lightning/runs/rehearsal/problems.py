"""What stands in for the hub in a rehearsal: problems in the columns of an experiment's table, and a random
model of its family. The model meets the answers, 1 and 2, often enough for groups of different rewards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from bapo_lightning.configuration.targets import TARGET
from bapo_lightning.data.problems.prompts import PLACEHOLDER

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
    return [json.loads(line) for line in SHIPPED.read_text(encoding="utf-8").splitlines()]


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
    if node["part"] is None:  # else a hash of the text tells the parts of one table apart
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
SIZES = {
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
ANSWERS = ("\\boxed{1}", "\\boxed{2}", "#### 1", "#### 2")
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
    shrunk |= {key: size for key, size in SIZES.items() if key in architecture}
    heads = architecture["num_attention_heads"]
    if architecture.get("num_key_value_heads", heads) == heads and "num_key_value_heads" in architecture:
        shrunk["num_key_value_heads"] = shrunk["num_attention_heads"]
    if "layer_types" in shrunk:
        shrunk["layer_types"] = shrunk["layer_types"][: SIZES["num_hidden_layers"]]
    shrunk |= {"vocab_size": vocab_size, "eos_token_id": eos, "pad_token_id": pad, "bos_token_id": None}
    return AutoConfig.for_model(**shrunk)


def small_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Returns a byte-pair tokenizer of the bytes that occur in `texts`, with a chat template."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(vocab_size=NUM_TOKENS, special_tokens=[PAD, END], show_progress=False)
    tokenizer.train_from_iterator([*texts, *ANSWERS, TEMPLATE, "0123456789"], trainer)
    tokenizer.add_tokens([AddedToken(answer, normalized=False) for answer in ANSWERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=TEMPLATE
    )
