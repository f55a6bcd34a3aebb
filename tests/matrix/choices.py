"""Every choice that can be combined with others, as overrides of a small run; a new one joins the day it is
written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import devnull
from pathlib import Path
from sys import executable

ROOT = Path(__file__).resolve().parents[2]
TWO_RANKS = "trainer.devices=2"
ASYNC = ("regime=async", "regime.minibatches=2", "regime.max_age=3")
STREAM = ("regime=stream", "regime.minibatches=2", "regime.max_age=3")
# A world behind a server, which the run starts; a stand-in for the tests speaks to a tiny model.
OPENENV = (
    *("environment=openenv", "environment/feedback=plain", "environment.feedback.role=null"),
    *("environment.stop=[';']", "environment.max_turns=4", "environment.max_reply_tokens=4"),
    *("environment.workers=0", "environment.answers.show=';'", "scale.max_feedback_tokens=12"),
    *("data=openenv", "data/prompt=plain", "data.train.count=32", "data.validation.openenv.count=4"),
    *("+data.train.reset.sums=true", "data.train.world=sums", "reward=environment"),
    f"environment.answers.server.command=[{executable},-m,tests.extras.openenv.guessing,'{{port}}',{devnull}]",
    f"environment.answers.server.folder={ROOT}",
)


def agent(program: str) -> tuple[str, ...]:
    """A program that asks an endpoint of the run."""
    return (
        *("environment=agent", "environment/feedback=plain", "environment.stop=[';']"),
        *("environment.max_turns=4", "environment.max_reply_tokens=4", "environment.workers=0"),
        *("scale.max_feedback_tokens=12", "reward=environment"),
        f"environment.answers.endpoint.command=[{executable},{ROOT / program}]",
    )


AGENT = agent("tests/extras/agent/toy.py")
# After a second wrong answer it asks as if it had not asked the second time.
BRANCHES = (*agent("bench/agent_program.py"), "environment.answers.edits=branch")
# Factor -> its values -> overrides. The world belongs to the environment, `RECORDED` to a schedule. Kernels
# that need a GPU, such as `model.attention=varlen`, are left out: a machine without one refuses them.
FACTORS: dict[str, dict[str, tuple[str, ...]]] = {
    "strategy": {
        "single": (),
        "ddp": ("strategy=ddp", TWO_RANKS),
        "fsdp": ("strategy=fsdp", TWO_RANKS),
        "fsdp, offloaded": ("strategy=fsdp", "strategy.cpu_offload=true", TWO_RANKS),
    },
    "engine": {
        "hf": ("rollout=hf",),
        "hf_child": ("rollout=hf_child", "rollout.engine.cpu_threads=1"),
        "vllm": ("rollout=vllm",),
        "vllm, TP 2": ("rollout=vllm", "rollout.engine.options.tensor_parallel_size=2"),
        "vllm_child": ("rollout=vllm_child", "rollout.engine.cpu_threads=1"),
        "vllm_server": ("rollout=vllm_server", "rollout.engine.cpu_threads=1"),
        "ray": ("rollout=ray", "rollout.engine.actors=2", "rollout.engine.cpus=0.5"),
        "ray_vllm": ("rollout=ray_vllm", "rollout.engine.actors=1", "rollout.engine.cpus=0.5"),
    },
    "placement": {"each": ("rollout.placement=each",), "controller": ("rollout.placement=controller",)},
    "regime": {
        "on_policy": ("regime=on_policy",),
        "replay": ("regime=replay", "regime.minibatches=2"),
        "async": ASYNC,
        "windowed_fifo": ("regime=windowed_fifo",),
        "partial": ("regime=partial", "regime.minibatches=2"),
        "stream": STREAM,
        "stream, recomputed": (*STREAM, "regime.stream=recompute"),
        "stream, recorded": STREAM,
        "async, partial": (
            "regime=async",
            "regime.partial_tokens=8",
            "regime.max_age=15",
            "regime.batches_in_flight=2",
        ),
        "reuse": ("regime=reuse",),
        "async, recorded": ASYNC,
    },
    "trained": {"weights": (), "LoRA": ("model/lora=default",)},
    "precision": {
        "float32": ("trainer.precision=32-true",),
        "bf16-mixed": ("trainer.precision=bf16-mixed", "model.head=auto"),
        "float32, compiled": ("trainer.precision=32-true", "model.compile=true"),
        "bf16-mixed, selective": ("trainer.precision=bf16-mixed", "model.activation_checkpointing=selective"),
    },
    "packing": {"none": ("model.packing=none",), "padding_free": ("model.packing=padding_free",)},
    "correction": {name: (f"correction={name}",) for name in ("none", "recomputed", "truncated_is", "a3po")},
    "environment": {"none": (), "sums": (), "openenv": OPENENV, "agent": AGENT, "agent, branches": BRANCHES},
    # Of a prompt, which it makes a token longer. A row gives the tokenizer one.
    "bos": {"none": (), "first": ("data.prompt.bos=true", "scale.max_prompt_tokens=16")},
    # Tokens that can be sampled: all, or a part, which the engine then tells. Below 0.98 the tiny models,
    # which are sure of a wrong habit, are never right.
    "sampling": {"all": (), "cut": ("rollout.top_p=0.98", "rollout.top_k=8")},
    "gradient": {"not kept": (), "cosine": ("callbacks.gradient.cosine=true",)},
    # rover needs scores at entry, flowrl a reference and a head, steer a statistic of the whole update.
    "algorithm": {
        name: (f"algorithm={name}",) for name in ("bapo", "dapo", "rover", "flowrl", "steer", "simpletir")
    }
    | {f"bapo, {way}": (f"algorithm.bounds.search={way}",) for way in ("exact",)},
}
FIRST = "first"  # with a BOS token, which the tokenizers of the tiny worlds lack
# The regimes that follow a schedule which a run before it has recorded.
RECORDED = ("async, recorded", "stream, recorded")
# What stands in for factors that a pair does not name: a pair is refused if it is in each of these.
CONTEXTS: tuple[dict[str, str], ...] = ({}, {"strategy": "ddp"})
# Factors between which a rule reads more than two at once.
TOGETHER = ("strategy", "engine", "placement")
Choices = Mapping[str, str]


def world(choices: Choices) -> str:
    """The experiment whose data and model are used: one without tools where it is not said that there are."""
    return "sums" if choices.get("environment", "sums") == "sums" else "additions"


def overrides(choices: Choices) -> list[str]:
    """Overrides of a run with these choices; factors that are not named are the experiment's own."""
    return [text for factor, value in choices.items() for text in FACTORS[factor][value]]


def names(row: Sequence[str]) -> dict[str, str]:
    """A row of values by their factors."""
    return dict(zip(FACTORS, row, strict=True))
