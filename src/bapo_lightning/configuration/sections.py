"""The parts of a run's configuration that are no `_target_`, as typed, frozen objects.

`problems` of a section yields what is wrong between its own keys; types and ranges stand in the annotations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Lt, MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from bapo_lightning.configuration.targets import Target
from bapo_lightning.modules.policy.options import Attention, LoraOptions, Packing, Targets
from bapo_lightning.plan.gpus import GPUS
from bapo_lightning.values import Advice, Count, CountOrZero, Name, NonNegative, Share, Size, TrainDtype

GPU = ("auto", "gpu", "cuda")


class Section(BaseModel):
    """A node of the configuration whose keys are fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """The typed section. Raises pydantic's ValidationError for keys and values that are wrong."""
        return cls.model_validate_json(json.dumps(plain), strict=True)

    def problems(self) -> Iterator[str]:
        """Yields what is wrong between the keys of this section; texts begin with the name of a key."""
        yield from ()


class Composed(Section):
    """A whole configuration, with the keys that training and evaluation share."""

    name: Name
    seed: Annotated[int, Ge(0), Lt(2**32), Advice("must be a whole number from 0 to 4294967295")]
    output_root: Annotated[str, MinLen(1)]
    group: str
    job_type: str
    run_name: str
    cpu_threads: Count | None
    logger: dict[str, Target] = Field(default_factory=dict)

    _plain: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def plain(self) -> dict[str, Any]:
        """The configuration as it is written to config.yaml."""
        return self._plain


class Algorithm(Section):
    """Choices that make up an algorithm."""

    name: Name
    objective: Target
    statistic: Target | None
    weighting: Target
    advantages: Target
    batch_advantages: Target | None
    experts: Target | None
    hints: Target | None
    replay: Target | None
    second_sampling: Target | None
    step_advantages: Target | None
    admission: Target
    bounds: Target
    length_shaping: Target | None
    turn_shaping: Target | None
    sample_filter: Target | None
    contribution_weight: Literal["rollout_prob", "none"]
    positive_share_target: Annotated[
        float, Gt(0), Lt(1), Advice("is no share of a whole; write a number between 0 and 1, e.g. 0.4")
    ]

    def problems(self) -> Iterator[str]:
        """One set of bounds and one statistic for the same tokens, and one origin of advantages."""
        for name in ("batch_advantages", "replay", "second_sampling", "length_shaping", "turn_shaping"):
            if self.step_advantages is not None and getattr(self, name) is not None:
                yield (
                    f"{name} changes advantages, and step_advantages gives every step its own, by the "
                    "verifier's scores; leave one of the two out"
                )
        for name in ("replay", "second_sampling"):
            if self.batch_advantages is not None and getattr(self, name) is not None:
                yield (
                    f"batch_advantages gives all samples of a batch their advantages, and {name} some of "
                    "them; leave one of the two out"
                )
        if self.statistic is not None and self.bounds.options.get("scope") == "microbatch":
            yield (
                "statistic is one number of the whole update, but bounds.scope=microbatch searches several "
                "times in each; write bounds.scope=minibatch"
            )


class Scale(Section):
    """Sizes of a run."""

    name: Name
    prompts_per_batch: Size
    group_size: Size
    num_rollout_batches: Size
    max_prompt_tokens: Size
    max_new_tokens: Size
    max_feedback_tokens: CountOrZero
    partial_tokens: Size
    overlong_buffer: Size
    micro_batch_tokens: Size
    validation_problems: Size
    validation_samples: Size

    def problems(self) -> Iterator[str]:
        """The buffer of the overlong punishment lies within a response."""
        if self.overlong_buffer > self.max_new_tokens:
            yield (
                f"overlong_buffer={self.overlong_buffer} must be in 1..scale.max_new_tokens="
                f"{self.max_new_tokens}; write a quarter of it"
            )


class Lora(Section):
    """Low-rank additions to the weights."""

    rank: Count
    alpha: Count
    target_modules: Targets

    def problems(self) -> Iterator[str]:
        """Names of layers that can be adapted."""
        yield from LoraOptions.problems(self.model_dump())


class Model(Section):
    """Which model is trained, and how it computes."""

    path: str
    dtype: TrainDtype
    attention: Attention | None = None
    packing: Packing = "none"
    activation_checkpointing: bool = False
    compile: bool = False
    liger: bool = False
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
        """Numbers of samples are given for sets that exist."""
        for name, count in self.validation_samples.items():
            if name not in self.validation:
                sets = ", ".join(self.validation) or "none"
                yield f"validation_samples.{name}={count} names no validation set; there are {sets}"


class Rollout(Section):
    """How responses are sampled."""

    temperature: float
    top_p: float
    top_k: int
    max_restarts: CountOrZero
    placement: Literal["each", "controller"]
    weight_sync: Target
    engine: Target
    serve_port: Count | None = None

    @property
    def sampling_engine(self) -> Target:
        """The engine that samples: the one that a child or a fleet makes, or `engine` itself."""
        made = self.engine.options.get("make_engine")
        return self.engine if made is None else Target(made)

    @property
    def tensor_parallel_size(self) -> int:
        """Devices of one engine that samples; 1 of an engine that does not split its model."""
        return int((self.sampling_engine.options.get("options") or {}).get("tensor_parallel_size", 1))

    def problems(self) -> Iterator[str]:
        """Sampling that training can use."""
        if not self.temperature > 0:
            cause = "training samples must come from a distribution"
            yield f"temperature={self.temperature:g}: {cause}; write 1.0"
        for name, value, off in (("top_p", self.top_p, 1.0), ("top_k", self.top_k, 0)):
            if value != off:
                yield (
                    f"{name}={value} is refused for training: engine and trainer would cut different tokens "
                    "at the edge of the nucleus, and the importance ratio of those means nothing; write "
                    f"{off} (evaluation may differ)"
                )


class Correction(Section):
    """Decoupled PPO: weights of the mismatch between rollout engine and trainer."""

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
        """A rate that trains."""
        rate = self.optimizer.options.get("lr")
        if not isinstance(rate, int | float):
            yield f"optimizer.lr={rate} must be a positive number"
        elif not rate > 0:
            yield f"optimizer.lr={rate} would change nothing; write a positive number"
        elif not isfinite(rate):
            yield f"optimizer.lr={rate} must be finite"


class Callbacks(BaseModel):
    """Callbacks by name; null leaves one out. Alarms are callbacks that are made of thresholds."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    __pydantic_extra__: dict[str, Target | None]

    alarms: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @property
    def nodes(self) -> Mapping[str, Target]:
        """The callbacks that are there, by name."""
        return {name: node for name, node in self.__pydantic_extra__.items() if node is not None}


class Plan(Section):
    """Assumptions of `make plan`."""

    gpu: str
    gpus: Count | None
    ignore: bool
    usable_share: Share
    overhead_gigabytes: NonNegative
    engine_gigabytes: NonNegative
    asleep_gigabytes: NonNegative
    mean_response_share: Share
    update_share: Share
    scoring_share: Share
    bandwidth_share: Share

    def problems(self) -> Iterator[str]:
        """A GPU of the table."""
        if self.gpu not in GPUS:
            yield f"gpu={self.gpu} is not known; write one of {', '.join(GPUS)}"
