"""The parts of a run's configuration without a `_target_`, as typed, frozen objects.

`problems` of a section yields conflicts between its own keys; types and ranges are in the annotations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import isfinite
from sys import float_info
from typing import Annotated, Any, Literal, Self

from annotated_types import Gt, Le, Lt, MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from bapo_lightning.configuration.targets import UNREADABLE, Target
from bapo_lightning.configuration.trainer_flags import trainer_problems
from bapo_lightning.data.rollouts.feedback import ChatFeedback
from bapo_lightning.data.rollouts.rules import GroupRule, Rules
from bapo_lightning.modules.policy.options import (
    Attention,
    Checkpointing,
    Head,
    Liger,
    LoraOptions,
    Packing,
    Targets,
)
from bapo_lightning.plan.gpus import GPUS
from bapo_lightning.system.values import (
    Advice,
    Count,
    CountOrZero,
    Minutes,
    Name,
    NonNegative,
    PathName,
    Seed,
    Share,
    Size,
    ThreadsOrZero,
    TrainDtype,
    Workers,
)

GPU = ("auto", "gpu", "cuda")
HOTTEST = 100.0  # temperature, above which logits make no difference
FASTEST = 100.0  # learning rate above which nothing of a weight's old value remains


class Section(BaseModel):
    """A node of the configuration whose keys are fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """The typed section. Raises pydantic's ValidationError for wrong keys and values."""
        return cls.model_validate_json(json.dumps(plain), strict=True)

    def problems(self) -> Iterator[str]:
        """Yields conflicts between the keys of this section; texts begin with the name of a key."""
        yield from ()


class Composed(Section):
    """A whole configuration, with the keys that training and evaluation share."""

    name: Name
    seed: Seed
    output_root: Annotated[str, MinLen(1)]
    group: str
    job_type: str
    run_name: str
    cpu_threads: Workers | None
    logger: dict[str, Target] = Field(default_factory=dict)

    _plain: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def plain(self) -> dict[str, Any]:
        """The configuration as written to config.yaml."""
        return self._plain


class AlgorithmNodes(Section):
    """Choices that make up an algorithm."""

    name: Name
    objective: Target
    weighting: Target
    advantages: Target
    bounds: Target
    rules: dict[str, Target | None]
    stages: dict[str, Target | None]
    positive_share_target: Annotated[
        float, Gt(0), Lt(1), Advice("is not a share of a whole; write a number between 0 and 1, e.g. 0.4")
    ]

    @property
    def parts(self) -> dict[str, Target]:
        """Its classes and functions, by their key below `algorithm`."""
        nodes: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            inner = value.items() if isinstance(value, Mapping) else ()
            nodes |= {name: value, **{f"{name}.{key}": node for key, node in inner}}
        return {name: node for name, node in nodes.items() if isinstance(node, Target)}

    @property
    def searches_before_gradients(self) -> bool:
        """Whether tokens of several micro-batches pass through the model once more for their bounds."""
        searches = getattr(self.bounds.object, "searches", False)
        return bool(searches) and self.bounds.options.get("search", "exact") == "exact"

    def make_rules(self) -> Rules:
        """Makes the rules about single groups. Raises ConfigError, see `Target.make`."""
        return Rules({name: node.make(GroupRule) for name, node in self.rules.items() if node is not None})

    @property
    def stage_nodes(self) -> dict[str, Target]:
        """The stages that are not null, by name."""
        return {name: node for name, node in self.stages.items() if node is not None}

    def problems(self) -> Iterator[str]:
        """Requires one source of a sample's advantages, and one rule for what is kept."""
        given: dict[str, list[str]] = {}
        for name, node in self.stage_nodes.items():
            with suppress(*UNREADABLE):  # reported as a target that cannot be imported
                given.setdefault(getattr(node.object, "gives_advantages", "to none"), []).append(name)
        whole, some = given.get("to all", []), given.get("to some", [])
        for other in [*whole[1:], *some] if whole else ():
            yield (
                f"stages.{whole[0]} gives all samples of a batch their advantages, and stages.{other} gives "
                f"{'them others' if other in whole else 'some of them others'}; leave one of the two out"
            )


class Lengths(Section):
    """Lengths in tokens."""

    max_prompt_tokens: Size
    max_new_tokens: Size
    max_feedback_tokens: CountOrZero

    @property
    def context_length(self) -> int:
        """Tokens of the longest text: prompt, response, and feedback of the environment."""
        return self.max_prompt_tokens + self.max_new_tokens + self.max_feedback_tokens


class Scale(Lengths):
    """Sizes of a run."""

    name: Name
    prompts_per_batch: Size
    group_size: Size
    num_rollout_batches: Size
    partial_tokens: Size
    overlong_buffer: Size
    micro_batch_tokens: Size
    validation_problems: Size
    validation_samples: Size

    def problems(self) -> Iterator[str]:
        """Requires the buffer of the overlong punishment to fit within a response."""
        if self.overlong_buffer > self.max_new_tokens:
            yield (
                f"overlong_buffer={self.overlong_buffer} must be in 1..scale.max_new_tokens="
                f"{self.max_new_tokens}; write a quarter of it"
            )


class Lora(Section):
    """Low-rank additions to the weights."""

    rank: Annotated[Count, Le(16_384)]  # no layer is wider
    alpha: Size
    target_modules: Targets

    def problems(self) -> Iterator[str]:
        """Requires names of layers that can be adapted."""
        yield from LoraOptions.problems(self.model_dump())


class Model(Section):
    """Choice of the trained model, and how it computes."""

    path: PathName
    dtype: TrainDtype
    attention: Attention | None = None
    packing: Packing = "none"
    activation_checkpointing: Checkpointing = False
    compile: bool = False
    liger: Liger = False
    head: Head = "own"
    lora: Lora | None = None
    architecture: dict[str, Any] | None = None
    made_by: str | None = None


def _named_sets(value: Any) -> Any:
    if not isinstance(value, Mapping) or "_target_" in value:
        raise ValueError(
            "is one set, and must be a mapping of names to sets, as in val/<name>/avg@k; write "
            "data.validation: {NAME: {_target_: ...}}"
        )
    return value


class Data(Section):
    """Problems, and how they become prompts."""

    name: Name
    prompt: Target
    train: Target
    validation: Annotated[dict[str, Target], BeforeValidator(_named_sets)]
    validation_samples: dict[str, Count]
    filters: dict[str, Target]
    hint: str

    def problems(self) -> Iterator[str]:
        """Requires numbers of samples to be for sets that exist."""
        for name, count in self.validation_samples.items():
            if name not in self.validation:
                sets = ", ".join(self.validation) or "none"
                yield f"validation_samples.{name}={count} names no validation set; there are {sets}"


class RolloutSection(Section):
    """How responses are sampled."""

    temperature: float
    top_p: Share
    top_k: CountOrZero
    max_restarts: CountOrZero
    placement: Literal["each", "controller"]
    weight_sync: Target
    engine: Target
    serve_port: Annotated[Count, Le(65_535)] | None = None

    @property
    def sampling_engine(self) -> Target:
        """The engine that samples: the one inside a child or a fleet, or `engine` itself."""
        node = self.engine.options.get("make_engine")
        return self.engine if node is None else Target(node)

    @property
    def is_cut(self) -> bool:
        """Whether some tokens cannot be sampled."""
        return self.top_p < 1 or self.top_k > 0

    @property
    def tensor_parallel_size(self) -> int:
        """Devices of one sampling engine; 1 if the engine does not split its model."""
        return int((self.sampling_engine.options.get("options") or {}).get("tensor_parallel_size", 1))

    def problems(self) -> Iterator[str]:
        """Requires sampling that training can use."""
        if not self.temperature > 0:
            cause = "training samples must come from a distribution"
            yield f"temperature={self.temperature:g}: {cause}; write 1.0"
        elif self.temperature > HOTTEST:
            yield f"temperature={self.temperature:g} makes sampling uniform; write 1.0"
        if (copy := self.weight_sync.node.get("temperature", self.temperature)) != self.temperature:
            yield (
                f"weight_sync.temperature={copy} is a copy of rollout.temperature={self.temperature}, which "
                "the proof of a sync needs; write the latter only"
            )


class Correction(Section):
    """Decoupled PPO: weights for the mismatch between rollout engine and trainer."""

    name: Name
    weights: Target | None
    proximal: Target | None
    step_scale: Target | None


class Optimizer(Section):
    """How gradients become updates."""

    optimizer: Target
    scheduler: Target
    max_grad_norm: Annotated[float, Gt(0), Advice("would erase every gradient; write a positive number")]
    max_nonfinite_in_a_row: Count

    def problems(self) -> Iterator[str]:
        """Requires a learning rate that trains."""
        node = self.optimizer.node  # its options would import torch
        if "lr" not in node:
            return
        rate = node["lr"]
        if not isinstance(rate, int | float):
            yield f"optimizer.lr={rate} must be a positive number"
        elif not rate > 0:
            yield f"optimizer.lr={rate} would change nothing; write a positive number"
        elif rate < float_info.min:
            yield f"optimizer.lr={rate} is below the smallest number of full precision; write a larger one"
        elif not isfinite(rate):
            yield f"optimizer.lr={rate} must be finite"
        elif rate > FASTEST:
            yield f"optimizer.lr={rate} is not a usable learning rate; write at most {FASTEST:g}"
        else:
            decay = node.get("weight_decay")
            if isinstance(decay, int | float) and rate * decay >= 1:
                yield (
                    f"optimizer.weight_decay={decay} with a rate of {rate} erases the weights in each "
                    "update; write a smaller one"
                )


class Callbacks(BaseModel):
    """Callbacks by name; null leaves one out. Alarms are callbacks built from thresholds."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    __pydantic_extra__: dict[str, Target | None]

    alarms: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @property
    def nodes(self) -> Mapping[str, Target]:
        """The callbacks that are not null, by name."""
        return {name: node for name, node in self.__pydantic_extra__.items() if node is not None}


class PlanSection(Section):
    """Assumptions of `make plan`."""

    gpu: str
    gpus: Count | None
    ignore: bool
    usable_share: Share
    overhead_gigabytes: NonNegative
    engine_gigabytes: NonNegative
    asleep_gigabytes: NonNegative
    mean_response_share: Share
    update_share: Share | None
    scoring_share: Share
    bandwidth_share: Share

    def problems(self) -> Iterator[str]:
        """Requires a GPU of the table."""
        if self.gpu not in GPUS:
            yield f"gpu={self.gpu} is not known; write one of {', '.join(GPUS)}"


class EnvironmentSection(Section):
    """The environment that answers the policy between its turns."""

    name: Name
    answers: Target
    feedback: Target
    max_turns: Count
    max_reply_tokens: Count
    stop: tuple[str, ...]
    workers: ThreadsOrZero

    def problems(self) -> Iterator[str]:
        """Requires turns to end as the format of messages demands."""
        if self.stop and self.feedback.is_a(ChatFeedback):
            yield (
                f"stop={list(self.stop)} with a chat format, whose messages end with the end token; write "
                "environment.stop=[], or environment/feedback=plain"
            )


def environment_problems(environment: EnvironmentSection | None, max_feedback_tokens: int) -> Iterator[str]:
    """Requires room for feedback if there is any, and none otherwise."""
    if environment is None:
        if max_feedback_tokens:
            yield (
                f"scale.max_feedback_tokens={max_feedback_tokens} without an environment has no effect; "
                "write environment=NAME, or leave it out"
            )
        return
    yield from (f"environment.{text}" for text in environment.problems())
    if not max_feedback_tokens and environment.max_turns > 1:
        needed = environment.max_reply_tokens * (environment.max_turns - 1)
        yield (
            f"environment={environment.name} with scale.max_feedback_tokens=0: no reply would fit; write "
            f"scale.max_feedback_tokens={needed}, which is room for every reply"
        )


class RunSections(Composed):
    """Everything that defines one run, and the mistakes that show without a library."""

    run_folder: str
    resume: str | None
    ranks: Target | None  # starts them, as a `RankLauncher` of `rank_rules`
    rank_timeout_minutes: Minutes
    algorithm: AlgorithmNodes
    regime: Target
    scale: Scale
    model: Model
    data: Data
    rollout: RolloutSection
    reward: Target
    environment: EnvironmentSection | None
    correction: Correction
    optimizer: Optimizer
    trainer: Target
    strategy: Target
    callbacks: Callbacks
    plan: PlanSection

    def problems(self) -> Iterator[str]:
        """Yields mistakes that can be found without a library."""
        parts = {name: getattr(self, name) for name in ("scale", "data", "rollout", "optimizer", "plan")}
        for name, part in (parts | {"model.lora": self.model.lora}).items():
            yield from (f"{name}.{text}" for text in (part.problems() if part is not None else ()))
        yield from trainer_problems(self.trainer)
