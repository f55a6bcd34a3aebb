"""The configuration of a training run: validated once, frozen, and read by attribute from then on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from inspect import isclass
from math import ceil, inf, isqrt
from pathlib import Path
from typing import Any

import torch
from lightning import Callback
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.loggers import Logger
from torch.optim import Optimizer as TorchOptimizer
from torch.optim.lr_scheduler import LRScheduler

from bapo_lightning.callbacks.alarm import Alarm
from bapo_lightning.callbacks.writers import MetricsWriter
from bapo_lightning.configuration.sections import RunSections, environment_problems
from bapo_lightning.configuration.targets import (
    UNREADABLE,
    Target,
    option_problems,
    run_problems,
    target_problems,
)
from bapo_lightning.configuration.trainer_flags import REFUSED_CALLBACKS, REFUSED_STRATEGIES, stock_problems
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.data.rollouts.rules import GroupRule
from bapo_lightning.data.rollouts.stages import BatchAdvantageStage
from bapo_lightning.data.run_facts import RunFacts
from bapo_lightning.modules.fsdp import ShardedStrategy
from bapo_lightning.objectives.advantages.reward_batch import RewardBatch, lone_advantages
from bapo_lightning.objectives.objective import needs_candidates, needs_of, prepares, scores_at_entry
from bapo_lightning.rewards.environment_score import environment_score
from bapo_lightning.rewards.functions import is_reward_function
from bapo_lightning.rollout.engine import EVERY
from bapo_lightning.system.errors import FOREIGN, ConfigError, in_words, pass_stops
from bapo_lightning.system.ranks.strategies import single_device
from bapo_lightning.system.values import MIXED

OURS = __name__.partition(".")[0]
LONGEST_WARMUP = 100  # times the updates of a run; short trials of long runs are within their warm-up
ALARM_EXAMPLE = "{metric: train/reward, below: 0.1}"


class RunConfig(RunSections):
    """Everything that defines one run."""

    def __repr__(self) -> str:
        """Returns one line, for the last line of a notebook's cell; `plain` has all of it."""
        return f"RunConfig({self.algorithm.name}, {self.regime.name}, seed={self.seed}, {self.run_folder!r})"

    __str__ = __repr__

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run_folder)

    @cached_property
    def staleness(self) -> Regime:
        """Generation schedule, and the age up to which samples may be trained on."""
        regime: Regime = self.regime.make(Regime)
        return regime

    @property
    def devices(self) -> int:
        """Ranks on each node."""
        return int(self.trainer.options.get("devices", 1))

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return int(self.trainer.options.get("num_nodes", 1))

    @property
    def num_ranks(self) -> int:
        """Ranks on all nodes."""
        return self.devices * self.num_nodes

    @property
    def accelerator(self) -> str:
        """Lightning's name of the devices; `auto` never means Apple's GPU, which has no float64."""
        named = str(self.trainer.options["accelerator"])
        return "cpu" if named == "auto" and not torch.cuda.is_available() else named

    @property
    def is_sharded(self) -> bool:
        """Whether the policy is sharded over the ranks."""
        return self.strategy.is_a(ShardedStrategy)

    @property
    def is_distributed(self) -> bool:
        """Whether the strategy uses several ranks."""
        return self.strategy.object is not single_device

    @property
    def compute_dtype(self) -> str:
        """The dtype in which the decoder layers compute: the weights', or bfloat16 in mixed precision."""
        return "bfloat16" if self.trainer.options["precision"] == MIXED else self.model.dtype

    @property
    def entry_scores(self) -> tuple[str, ...]:
        """Scores that the trainer computes when a batch enters training, names of `SCORES`."""
        recomputes = self.correction.weights is not None and self.correction.proximal is None
        return ("logp",) * recomputes + scores_at_entry(self.algorithm.objective.object)

    @property
    def scores_by_reference(self) -> bool:
        """Whether the run's initial weights score each rollout batch when it enters training."""
        return "reference_logp" in needs_of(self.algorithm.objective.object)

    @property
    def num_candidates(self) -> int:
        """Number of tokens that the engine records at each position: all tokens that could be sampled if some
        could not, and those that the objective reads.
        """
        objective = self.algorithm.objective
        number = objective.options.get("head") if needs_candidates(objective.object) else 0
        return EVERY if self.rollout.is_cut or number is None else int(number)

    @property
    def facts(self) -> RunFacts:
        """Facts about the run that the parts of the algorithm may use."""
        parts = {}
        for name, part in self.algorithm.parts.items():
            with suppress(*UNREADABLE):  # reported as a target that cannot be imported
                parts[name] = part.object
        return RunFacts(
            experiment=self.name,
            model=self.model.path,
            regime=self.staleness,
            group_size=self.scale.group_size,
            prompts_per_batch=self.scale.prompts_per_batch,
            max_prompt_tokens=self.scale.max_prompt_tokens,
            max_new_tokens=self.scale.max_new_tokens,
            environment=self.environment.name if self.environment is not None else None,
            parts=parts,
        )

    def problems(self) -> Iterator[str]:
        """Yields conflicts between the keys of different sections."""
        yield from super().problems()
        yield from (f"algorithm.{text}" for text in self.algorithm.problems())
        with suppress(*UNREADABLE):  # reported as a target that cannot be imported
            if is_reward_function(self.reward.object):
                name = self.reward.name
                yield f"reward._target_={name} returns numbers; write reward=functions reward.functions=[...]"
            if self.environment is None and self.reward.object is environment_score:
                yield "reward=environment without an environment scores nothing; write environment=NAME"
            if prepares(self.algorithm.objective.object):
                yield from self._scope_problems()
        yield from self.lightning_problems()
        yield from stock_problems("strategy", self.strategy, REFUSED_STRATEGIES)
        for name, node in self.callbacks.nodes.items():
            yield from stock_problems(f"callbacks.{name}", node, REFUSED_CALLBACKS)
        yield from self._kind_problems()
        yield from environment_problems(self.environment, self.scale.max_feedback_tokens)
        facts = self.facts
        for name, part in self.algorithm.parts.items():
            yield from run_problems(part, f"algorithm.{name}", facts)
            with suppress(*UNREADABLE):  # reported as a target that cannot be imported
                if name.startswith("rules.") and not part.is_a(GroupRule):
                    wanted = f"derive it from {GroupRule.__module__}.{GroupRule.__name__}"
                    yield f"algorithm.{name}={part.name} is not a rule; {wanted}"
        yield from self._batch_problems()
        yield from self._optimizer_problems()
        limit = self.regime.options["max_new_tokens"]
        if limit != self.scale.max_new_tokens:
            yield (
                f"regime.max_new_tokens={limit} is a copy, for the age bound, of scale.max_new_tokens="
                f"{self.scale.max_new_tokens}; write the latter only"
            )

    def lightning_problems(self) -> Iterator[str]:
        """Yields what is wrong with the duration."""
        try:
            Timer(self.trainer.options["max_time"])
        except Exception as error:  # each part of a duration has its own errors
            yield f"trainer.max_time={self.trainer.options['max_time']} is not a duration ({error})"

    def _kind_problems(self) -> Iterator[str]:
        wanted = (("callbacks", self.callbacks.nodes, Callback), ("logger", self.logger, Logger))
        for section, nodes, kind in wanted:
            for name, node in nodes.items():
                with suppress(*UNREADABLE):  # reported as a target that cannot be imported
                    if isclass(node.object) and not issubclass(node.object, kind):
                        base = f"{kind.__module__}.{kind.__name__}"
                        what = f"is not a lightning {kind.__name__}; derive it from {base}"
                        yield f"{section}.{name}._target_={node.name} {what}"
        yield from self._callback_problems()
        yield from self._batch_advantage_problems()
        objective = self.algorithm.objective
        if list(target_problems(objective.node)):
            return
        try:
            objective.make(1)
        except ConfigError as error:
            yield f"algorithm.objective is not a function of one token table ({error.problems[0]})"

    def _batch_advantage_problems(self) -> Iterator[str]:
        rewards = torch.eye(2)
        for name, node in self.algorithm.stage_nodes.items():
            with suppress(*UNREADABLE):  # reported as a target that cannot be imported
                if not node.is_a(BatchAdvantageStage) or list(target_problems(node.node)):
                    continue
                try:
                    values = node.make().advantages(RewardBatch.example(rewards, rewards - 0.5))
                    wrong = "" if getattr(values, "shape", None) == rewards.shape else f"they are {values!r}"
                except FOREIGN as error:  # whatever custom advantages raise
                    pass_stops(error)
                    wrong = in_words(error)
                if wrong:
                    yield (
                        f"algorithm.stages.{name}.advantages gives two groups of two responses no advantages "
                        f"[2, 2] ({wrong})"
                    )

    def _callback_problems(self) -> Iterator[str]:
        with suppress(*UNREADABLE):  # reported as a target that cannot be imported
            if not any(node.is_a(MetricsWriter) for node in self.callbacks.nodes.values()):
                yield "callbacks.metrics_writer is left out, and others need the numbers that it passes on"
        for name, node in self.callbacks.nodes.items():
            with suppress(*UNREADABLE):  # reported as a target that cannot be imported
                folder = node.options.get("folder", self.run_folder)
                if node.object.__module__.startswith(f"{OURS}.") and folder != self.run_folder:
                    yield (
                        f"callbacks.{name}.folder={folder} is not the run folder, where resume and the pages "
                        "look; leave it out, and write run_folder=FOLDER"
                    )

    def _scope_problems(self) -> Iterator[str]:
        if self.algorithm.bounds.options.get("scope") == "microbatch":
            yield (
                f"algorithm.objective={self.algorithm.objective.name} looks at the whole update, but "
                "algorithm.bounds.scope=microbatch searches several times in each; write "
                "algorithm.bounds.scope=minibatch"
            )

    def _optimizer_problems(self) -> Iterator[str]:
        warmup = self.optimizer.scheduler.options.get("warmup_updates")
        updates = self.scale.num_rollout_batches * self.staleness.updates_per_rollout_batch
        if isinstance(warmup, int) and warmup > LONGEST_WARMUP * updates:
            yield (
                f"optimizer.scheduler.warmup_updates={warmup} in a run of {updates} updates: the rate never "
                "reaches a hundredth; write fewer"
            )
        node = self.optimizer.optimizer
        rate = node.options.get("lr")
        if not isinstance(rate, int | float) or not 0 < rate < inf:
            return  # reported by its section
        wanted: type = TorchOptimizer
        key = "optimizer.optimizer"
        try:
            built = node.make()([torch.zeros(1, requires_grad=True)])
            if isinstance(built, wanted):
                key, node, wanted = "optimizer.scheduler", self.optimizer.scheduler, LRScheduler
                built = node.make()(built)
            if not isinstance(built, wanted):
                yield f"{key}._target_={node.name} makes a {type(built).__name__}, no {wanted.__name__}"
        except Exception as error:  # whatever it raises
            yield f"{key} is refused by {node.name}: {error}"

    def _batch_problems(self) -> Iterator[str]:
        yield from share_problems(
            "regime.minibatches", self.staleness.minibatches, self.scale.prompts_per_batch
        )
        if self.scale.group_size == 1:
            yield from self._single_sample_problems()
        yield from self._window_problems()
        yield from self._reuse_problems()

    def _single_sample_problems(self) -> Iterator[str]:
        algorithm, remedy = self.algorithm, "write scale.group_size=8"
        try:
            given = [node for node in algorithm.stage_nodes.values() if gives_to_all(node)]
            of_batch = [node.make().advantages for node in given if node.is_a(BatchAdvantageStage)]
            if len(of_batch) < len(given):
                return  # each sample gets separate advantages
            values = lone_advantages(algorithm.advantages.make(), *of_batch[:1])
        except ConfigError:
            return  # reported by their node
        except Exception as error:  # whatever custom advantages raise
            yield f"scale.group_size=1 is refused by the advantages: {error}; {remedy}"
            return
        if not values.any():
            yield (
                "scale.group_size=1: advantages are relative to a group, and one sample is always average; "
                f"{remedy}"
            )

    def _reuse_problems(self) -> Iterator[str]:
        regime, prompts = self.staleness, self.scale.prompts_per_batch
        share, size = regime.reuse_share, prompts // regime.minibatches
        if 0 < share < 1 and int(share * prompts) == 0:
            yield (
                f"regime.reuse_share={share} of scale.prompts_per_batch={prompts} groups is none; write a "
                "larger share"
            )
        elif share and regime.reuse_minibatches != "mixed" and int(share * prompts) < size:
            yield (
                f"regime.reuse_minibatches={regime.reuse_minibatches} with regime.reuse_share={share}: "
                f"earlier groups never fill a minibatch of {size}; write a larger regime.reuse_share, or "
                "more regime.minibatches"
            )

    def _window_problems(self) -> Iterator[str]:
        regime, prompts = self.staleness, self.scale.prompts_per_batch
        updates, window = regime.updates_per_rollout_batch, regime.window
        if window is None or not regime.async_generation:
            return
        widest = prompts * ((regime.admission_age + 1) // updates - 1) + 1
        if window > widest:
            needed = updates * (ceil((window - 1) / prompts) + 1) - 1
            yield (
                f"regime.window={window} with regime.max_age={regime.max_age} leaves no room to start a "
                f"rollout batch of {prompts} groups in time; write regime.window={max(widest, 1)}, or "
                f"regime.max_age={needed} or more"
            )


def share_problems(key: str, minibatches: int, prompts: int) -> Iterator[str]:
    """Yields why a rollout batch cannot be divided into so many minibatches, whose number `key` sets."""
    if prompts % minibatches:
        small = [count for count in range(1, isqrt(prompts) + 1) if prompts % count == 0]
        fits = [*small, *(prompts // count for count in small)]
        nearest = min(fits, key=lambda count: abs(count - minibatches))
        yield (
            f"{key}={minibatches} does not divide scale.prompts_per_batch={prompts}: minibatches hold whole "
            f"groups of equal number; write {key}={nearest} or "
            f"scale.prompts_per_batch={(prompts // minibatches + 1) * minibatches}"
        )


def gives_to_all(stage: Target) -> bool:
    """Whether a stage gives all samples of a batch their advantages."""
    return getattr(stage.object, "gives_advantages", None) == "to all"


def alarm_problems(alarms: Any, path: str) -> Iterator[str]:
    """Yields what is wrong with the alarms, which are mappings of options by name."""
    if not isinstance(alarms, Mapping):
        yield f"{path}={alarms} must map names to alarms; write e.g. {{reward: {ALARM_EXAMPLE}}}"
        return
    for name, node in alarms.items():
        key = f"{path}.{name}"
        if not isinstance(node, Mapping):
            yield f"{key}={node} is not an alarm; write e.g. {ALARM_EXAMPLE}, or {key}.action=off"
        else:
            yield from option_problems(Alarm, "an alarm", {"name": name, **node}, key, is_complete=True)
