"""The configuration of a training run: validated once, frozen, and read by attribute ever after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from math import ceil, inf, isqrt
from pathlib import Path
from typing import Any

import torch

from bapo_lightning.callbacks.alarm import Alarm
from bapo_lightning.configuration.environment import (
    Environment,
    environment_problems,
    turn_rule_problems,
)
from bapo_lightning.configuration.sections import (
    Algorithm,
    Callbacks,
    Composed,
    Correction,
    Data,
    Model,
    Optimizer,
    Plan,
    Rollout,
    Scale,
)
from bapo_lightning.configuration.targets import UNREADABLE, Target, option_problems
from bapo_lightning.configuration.trainer_flags import (
    REFUSED_CALLBACKS,
    REFUSED_STRATEGIES,
    stock_problems,
    trainer_problems,
)
from bapo_lightning.data.rollouts.regime import Regime
from bapo_lightning.errors import ConfigError
from bapo_lightning.modules.fsdp import ShardedStrategy
from bapo_lightning.objectives.advantages.reward_batch import lone_advantages
from bapo_lightning.objectives.token_table import needs_at_entry, needs_reference
from bapo_lightning.precision import MIXED
from bapo_lightning.ranks.strategies import single_device
from bapo_lightning.rewards.environment_score import environment_score
from bapo_lightning.rewards.functions import is_reward_function
from bapo_lightning.values import Positive

ALARM_EXAMPLE = "{metric: train/reward, below: 0.1}"


class RunConfig(Composed):
    """Everything that one run is."""

    run_folder: str
    resume: str | None
    ranks: Target | None  # starts them, as a `RankLauncher` of `rank_rules`
    rank_timeout_minutes: Positive
    algorithm: Algorithm
    regime: Target
    scale: Scale
    model: Model
    data: Data
    rollout: Rollout
    reward: Target
    environment: Environment | None
    correction: Correction
    optimizer: Optimizer
    trainer: Target
    strategy: Target
    callbacks: Callbacks
    plan: Plan

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run_folder)

    @cached_property
    def staleness(self) -> Regime:
        """Generation schedule, and for how long samples may be trained on."""
        made: Regime = self.regime.make()
        return made

    @property
    def devices(self) -> int:
        """Ranks on each node."""
        return int(self.trainer.options["devices"])

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return int(self.trainer.options["num_nodes"])

    @property
    def num_ranks(self) -> int:
        """Ranks on all nodes."""
        return self.devices * self.num_nodes

    @property
    def accelerator(self) -> str:
        """Lightning's name of the devices; `auto` never means Apple's GPU, which lacks float64."""
        named = str(self.trainer.options["accelerator"])
        return "cpu" if named == "auto" and not torch.cuda.is_available() else named

    @property
    def is_sharded(self) -> bool:
        """Whether the policy is sharded over the ranks."""
        return self.strategy.is_a(ShardedStrategy)

    @property
    def is_distributed(self) -> bool:
        """Whether the strategy is one of several ranks."""
        return self.strategy.object is not single_device

    @property
    def compute_dtype(self) -> str:
        """The dtype in which the decoder layers compute: the weights', or bfloat16 in mixed precision."""
        return "bfloat16" if self.trainer.options["precision"] == MIXED else self.model.dtype

    @property
    def entry_scores(self) -> tuple[str, ...]:
        """Scores that the trainer computes when a batch enters training, names of `SCORES`."""
        recomputes = self.correction.weights is not None and self.correction.proximal is None
        return ("logp",) * recomputes + needs_at_entry(self.algorithm.objective.object)

    @property
    def scores_by_reference(self) -> bool:
        """Whether the weights that the run began with score each rollout batch when it enters training."""
        return needs_reference(self.algorithm.objective.object)

    def problems(self) -> Iterator[str]:
        """Yields what is wrong between the keys of different sections."""
        for name in ("algorithm", "scale", "data", "rollout", "optimizer", "plan"):
            yield from (f"{name}.{text}" for text in getattr(self, name).problems())
        if self.model.lora is not None:
            yield from (f"model.lora.{text}" for text in self.model.lora.problems())
        with suppress(*UNREADABLE):  # told as a target that cannot be imported
            if is_reward_function(self.reward.object):
                name = self.reward.name
                yield f"reward._target_={name} returns numbers; write reward=functions reward.functions=[...]"
            if self.environment is None and self.reward.object is environment_score:
                yield "reward=environment without an environment scores nothing; write environment=NAME"
        yield from trainer_problems(self.trainer)
        yield from stock_problems("strategy", self.strategy, REFUSED_STRATEGIES)
        for name, node in self.callbacks.nodes.items():
            yield from stock_problems(f"callbacks.{name}", node, REFUSED_CALLBACKS)
        yield from environment_problems(self.environment, self.scale.max_feedback_tokens)
        yield from self._conversation_problems()
        yield from self._batch_problems()
        yield from self._optimizer_problems()
        limit = self.regime.options["max_new_tokens"]
        if limit != self.scale.max_new_tokens:
            yield (
                f"regime.max_new_tokens={limit} is a copy, for the age bound, of scale.max_new_tokens="
                f"{self.scale.max_new_tokens}; write the latter only"
            )

    def _conversation_problems(self) -> Iterator[str]:
        """Yields parts that cannot handle conversations, or that need them."""
        yield from turn_rule_problems(self.environment, self.algorithm)
        if self.environment is not None and self.algorithm.step_advantages is not None:
            yield (
                f"environment={self.environment.name} with algorithm.step_advantages: a critic values steps "
                "of responses that nobody answers; write environment=none, or another algorithm"
            )

    def _optimizer_problems(self) -> Iterator[str]:
        """Yields what the optimizer's own constructor refuses."""
        node = self.optimizer.optimizer
        rate = node.options.get("lr")
        if not isinstance(rate, int | float) or not 0 < rate < inf:
            return  # told by its section
        try:
            node.make()([torch.zeros(1, requires_grad=True)])
        except Exception as error:  # whatever it raises
            yield f"optimizer.optimizer is refused by {node.name}: {error}"

    def _batch_problems(self) -> Iterator[str]:
        """Groups, minibatches and advantages fit together."""
        prompts, group_size = self.scale.prompts_per_batch, self.scale.group_size
        minibatches = self.staleness.minibatches
        if prompts % minibatches:
            small = [count for count in range(1, isqrt(prompts) + 1) if prompts % count == 0]
            fits = [*small, *(prompts // count for count in small)]
            nearest = min(fits, key=lambda count: abs(count - minibatches))
            yield (
                f"regime.minibatches={minibatches} does not divide scale.prompts_per_batch={prompts}: "
                "minibatches hold whole groups of equal number; write regime.minibatches="
                f"{nearest} or scale.prompts_per_batch={(prompts // minibatches + 1) * minibatches}"
            )
        if group_size == 1 and self.algorithm.advantages.options.get("scale") == "std":
            yield (
                "scale.group_size=1 with algorithm.advantages.scale=std: one sample has no standard "
                "deviation; write scale.group_size=8"
            )
        elif group_size == 1 and self.algorithm.step_advantages is None:
            yield from self._single_sample_problems()
        yield from self._window_problems()
        yield from self._replay_problems()
        yield from self._second_sampling_problems()
        experts = self.algorithm.experts
        if experts is not None and experts.options.get("count", 0) >= group_size:
            yield (
                f"algorithm.experts.count={experts.options['count']} leaves none of scale.group_size="
                f"{group_size} answers to the policy; write algorithm.experts.count=1"
            )
        share = self.staleness.reuse_share
        if 0 < share < 1 and int(share * prompts) == 0:
            yield (
                f"regime.reuse_share={share} of scale.prompts_per_batch={prompts} groups is none; write a "
                "larger share"
            )

    def _single_sample_problems(self) -> Iterator[str]:
        """Yields why the advantages cannot work with one sample per problem."""
        algorithm, remedy = self.algorithm, "write scale.group_size=8"
        try:
            found = lone_advantages(
                algorithm.advantages.make(),
                algorithm.batch_advantages.make() if algorithm.batch_advantages else None,
            )
        except ConfigError:
            return  # told by their node
        except Exception as error:  # whatever advantages of one's own raise
            yield f"scale.group_size=1 is refused by the advantages: {error}; {remedy}"
            return
        if not found.any():
            yield (
                "scale.group_size=1: advantages are relative to a group, and one sample is always average; "
                f"{remedy}"
            )

    def _second_sampling_problems(self) -> Iterator[str]:
        """An engine that waits for the batch, and prompts to sample again."""
        node, prompts = self.algorithm.second_sampling, self.scale.prompts_per_batch
        if node is None:
            return
        if self.staleness.async_generation:
            yield (
                "algorithm.second_sampling with regime.async_generation=true: the engine is busy with later "
                "batches when one is complete; write regime=replay"
            )
        share = node.options.get("share", 1)
        if int(share * prompts) == 0:
            yield (
                f"algorithm.second_sampling.share={share} of scale.prompts_per_batch={prompts} prompts is "
                "none; write a larger share"
            )

    def _replay_problems(self) -> Iterator[str]:
        """Groups of earlier batches where an algorithm replays some, enough for minibatches of their own."""
        regime, prompts = self.staleness, self.scale.prompts_per_batch
        if self.algorithm.replay is not None and not regime.reuse_share:
            yield (
                f"algorithm.replay={self.algorithm.replay.name} trains on groups of earlier batches, and "
                f"regime={regime.name} keeps none; write regime=reuse, or the regime that bears the "
                "algorithm's name"
            )
        if regime.reuse_share and regime.reuse_minibatches != "mixed":
            size = prompts // regime.minibatches
            if 0 < int(regime.reuse_share * prompts) < size:
                yield (
                    f"regime.reuse_minibatches={regime.reuse_minibatches} with regime.reuse_share="
                    f"{regime.reuse_share}: earlier groups never fill a minibatch of {size}; write a larger "
                    "regime.reuse_share, or more regime.minibatches"
                )

    def _window_problems(self) -> Iterator[str]:
        """Room for the next rollout batch behind a window that is held up."""
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


def alarm_problems(alarms: Any, path: str) -> Iterator[str]:
    """Yields what is wrong with the alarms, which are mappings of options by name."""
    if not isinstance(alarms, Mapping):
        yield f"{path}={alarms} must map names to alarms; write e.g. {{reward: {ALARM_EXAMPLE}}}"
        return
    for name, node in alarms.items():
        key = f"{path}.{name}"
        if not isinstance(node, Mapping):
            yield f"{key}={node} is no alarm; write e.g. {ALARM_EXAMPLE}, or {key}.action=off"
        else:
            yield from option_problems(Alarm, "an alarm", {"name": name, **node}, key, is_complete=True)
