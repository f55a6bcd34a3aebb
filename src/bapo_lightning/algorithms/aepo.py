"""AEPO (arXiv 2510.08141): GRPO, plus REINFORCE on another temperature's right answers to steer entropy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from bapo_lightning.data.rollouts.running_group import RunningGroup
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.stages import BatchStage, EnteringBatch, StageTools
from bapo_lightning.data.run_facts import RunFacts
from bapo_lightning.objectives.objective import clip
from bapo_lightning.objectives.surrogate import DualClip
from bapo_lightning.objectives.token_table import TokenTable
from bapo_lightning.rollout.engine import GenerationRequest, request_seed
from bapo_lightning.system.values import Count, NonNegative, Positive, Share
from bapo_lightning.types import Group, Origin, Rollout, Sample


def aepo(table: TokenTable, dual_clip: DualClip | None = None) -> Tensor:
    """Returns A log pi for tokens of another temperature, min(r A, clip(r, low, high) A) for others, [N].

    The gradient is thus GRPO's plus E[R grad log pi] over answers of pi^T: a ratio to pi^T would undo the
    temperature. log r stands for log pi: they differ by a constant. The authors' code clips as PPO there,
    too, with the ratio to the policy of temperature 1 before the batch.
    """
    clipped = clip(table, dual_clip)
    return (table.advantage * table.log_ratio).where(table.origin == Origin.TEMPERED, clipped)


@dataclass(frozen=True)
class SecondSampling(BatchStage):
    """Samples a share of a batch's prompts again, hotter while the policy's entropy is at most the target and
    colder above it, and replaces answers to the same prompt with right answers, which get an advantage of 1
    (arXiv 2510.08141).

    An answer counts as right if its advantage in the second group exceeds `above`. At most `most` are taken;
    if the policy's entropy is above the target, half of that, or of the right ones if they are fewer. In the
    authors' code they replace the first rows of the batch, whatever prompt those answer. The entropy is
    measured in the last update; before the first it counts as 0, as in their code.
    """

    gives_advantages = "to some"
    target_entropy: Positive = 0.5  # H*, nats
    high: Positive = 1.2  # temperature while the entropy is at most H*
    low: Positive = 0.8  # temperature while the entropy is above H*
    share: Share = 0.25  # of the prompts: the first of the batch
    most: Count = 60  # largest number of answers in a batch
    above: NonNegative = 0.05

    @staticmethod
    def problems(options: Mapping[str, Any]) -> Iterator[str]:
        """Yields conflicts between the options."""
        if not options["low"] < options["high"]:
            yield f"low={options['low']} must be below high={options['high']}; write low=0.8, high=1.2"

    @staticmethod
    def run_problems(options: Mapping[str, Any], run: RunFacts) -> Iterator[str]:
        """Yields a message if the engine has no time for it, or if no prompt is sampled again."""
        if run.regime.async_generation:
            yield (
                " with regime.async_generation=true: the engine is busy with later batches when one is "
                "complete; write regime=replay"
            )
        share, prompts = options["share"], run.prompts_per_batch
        if int(share * prompts) == 0:
            yield f"share={share} of scale.prompts_per_batch={prompts} prompts is none; write a larger share"

    def __call__(self, batch: EnteringBatch, tools: StageTools) -> dict[str, float]:
        """Replaces answers with answers of the second sampling."""
        tools.refresh_engine()
        entropy, version = float(tools.owner.last_entropy), tools.owner.policy_version
        batch.fresh, metrics = self.sampled(tools.sampler, batch.fresh, entropy, version)
        tools.sampler.engine.sleep()
        return metrics

    def sampled(
        self, sampler: RolloutSampler, groups: Sequence[Group], entropy: float, version: int
    ) -> tuple[list[Group], dict[str, float]]:
        """Returns the fresh groups with the answers of the second sampling, and its metrics. The sampler's
        engine has the current weights; `entropy` is the policy's in the last update, in nats.
        """
        start = time.perf_counter()
        cold = entropy > self.target_entropy
        temperature = self.low if cold else self.high
        resampled = groups[: int(self.share * len(groups))]
        second = _sampled_at(temperature, sampler, resampled, version)
        right = [
            [
                sample
                for sample, advantage in zip(group.samples, group.advantages, strict=True)
                if advantage > self.above
            ]
            for group in second
        ]
        num_right = sum(map(len, right))
        room = taken = min(self.most, num_right) // (2 if cold else 1)
        mixed = []
        for group, samples in zip(resampled, right, strict=True):
            mixed.append(_with_first_replaced(group, samples[:room]))
            room -= len(samples[:room])
        metrics = {
            "rollout/second_temperature": temperature,
            "rollout/second_right": num_right,
            "rollout/second_used": taken,
            "rollout/second_tokens": sum(group.num_tokens for group in second),
            "time/second_sampling_seconds": time.perf_counter() - start,
        }
        return [*mixed, *groups[len(resampled) :]], metrics


def _with_first_replaced(group: Group, samples: Sequence[Sample]) -> Group:
    count = len(samples)
    return replace(
        group,
        samples=(*samples, *group.samples[count:]),
        advantages=(*[1.0] * count, *group.advantages[count:]),
    )


def _sampled_at(
    temperature: float, sampler: RolloutSampler, groups: Sequence[Group], version: int
) -> list[Group]:
    prompts = [group.samples[0].rollout.prompt_ids for group in groups]
    requests = [
        GenerationRequest(
            prompt,
            sampler.max_new_tokens,
            request_seed(
                sampler.seed,
                sampler.engine.version,
                group.problem.id,
                index,
                group.epoch,
                variant=f"temperature {temperature}",
            ),
            number,
            index,
        )
        for number, (group, prompt) in enumerate(zip(groups, prompts, strict=True))
        for index in range(len(group.samples))
    ]
    running = [
        RunningGroup(group.item, [Rollout(prompt, origin=Origin.TEMPERED)] * len(group.samples), group.hint)
        for group, prompt in zip(groups, prompts, strict=True)
    ]
    tempered = replace(sampler.sampling, temperature=temperature)
    for number, rollout in sampler.continued(requests, running, tempered).items():
        running[requests[number].group].rollouts[requests[number].index] = rollout
    return sampler.score(running, version)
