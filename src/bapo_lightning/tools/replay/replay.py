"""A recorded update under an algorithm: what its loss would be, without a model.

The loss is the one of `bapo_lightning.losses`, so that no formula is written here. Shapes: N tokens of B
responses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bapo_lightning.configuration.compose import hydra_overrides
from bapo_lightning.losses import PolicyLoss, Shared, algorithm_section, policy_loss
from bapo_lightning.objectives.bounds import CUT_BY, cut_contributions, positive_shares
from bapo_lightning.objectives.surrogate import clipped_fractions, clipped_mask
from bapo_lightning.objectives.token_table import concatenate, table_for
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.tools.replay.step import ENTRY, GROUP, LENGTH, PART, REWARD, TOKENS, Leaf, Step, leaves

ROUNDING = 1e-5  # relative difference of two gradients that sums in another order may have
READ = {*TOKENS} - {ENTRY}  # columns of tokens that a loss may read
_KEY = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*", re.ASCII)  # of an option, and of no `_target_`
_WORD = re.compile(r"[\w.+-]*", re.ASCII)


@dataclass(frozen=True)
class Replayed:
    """Numbers of an update under an algorithm; shares and contributions are the ones of a run's monitors."""

    numbers: dict[str, float]  # that a run reports as well, see `callback.SHOWN`; bounds: mean over searches
    bounds: list[tuple[float, float]]  # low and high of each micro-batch
    contributions: dict[str, float]  # of both signs, as the objective cuts them and without clipping
    # [N] in the step's order: response, advantage, ratio, clipped, and gradient, which is d loss / d logp
    tokens: dict[str, Tensor]


def loss_of(step: Step, algorithm: str | None, overrides: Sequence[str]) -> PolicyLoss:
    """Returns the loss of an algorithm, by default the recorded one. The recorded algorithm has the recorded
    options, which `overrides` replace; its rules and stages are left out, since they have acted.

    Raises:
        ConfigError: it needs more than a step holds, an option is wrong, or the step names code.
    """
    if (name := algorithm or step.algorithm) is None:
        raise ConfigError(["the step does not say its algorithm; write algorithm=NAME"])
    recorded: tuple[str, ...] = ()
    if name == step.algorithm:
        plain = algorithm_section(name)
        acted = {f"++algorithm.{kind}.{key}": None for kind in ("rules", "stages") for key in plain[kind]}
        recorded = hydra_overrides(acted)
        for depth in (0, 1):  # values at the top also stand for others below
            known = leaves(algorithm_section(name, *recorded))
            recorded += hydra_overrides(dict(_recorded(step, known, overrides, depth)))
    loss = policy_loss(name, *recorded, *overrides)
    if memory := ", ".join(loss.state_dict()):
        text = f"algorithm={name} remembers earlier updates ({memory}), and a step holds one"
        raise ConfigError([f"{text}; run it with bapo-train"])
    return loss


def _recorded(
    step: Step, known: Mapping[str, Leaf], overrides: Sequence[str], depth: int
) -> Iterator[tuple[str, Leaf]]:
    """Yields overrides for recorded options that differ from `known` values, at the top (depth 0) or anywhere
    (1). Nothing that a file names is imported.
    """
    given = {text.lstrip("+").partition("=")[0] for text in overrides}
    for key, value in step.settings.items():
        has_acted = key.startswith(("rules.", "stages."))
        if has_acted or known.get(key, ...) == value or (not depth and "." in key):
            continue
        is_safe = _KEY.fullmatch(key) and (not isinstance(value, str) or _WORD.fullmatch(value))
        if not is_safe and f"algorithm.{key}" not in given:
            text = f"the step was recorded with algorithm.{key}={value}, which a file may not choose"
            raise ConfigError([f"{text}; write it after the file, or algorithm=NAME for another algorithm"])
        if is_safe:
            yield f"++algorithm.{key}", value


def replay(loss: PolicyLoss, step: Step, cut: Tensor, is_alone: bool = False) -> Replayed:
    """Returns the numbers of an update that is cut into micro-batches.

    Args:
        loss: of the algorithm; advantages are the step's.
        step: update.
        cut: number of each response's micro-batch, [B].
        is_alone: whether each micro-batch is its own update for all that is chosen from an update's tokens
            (bounds, picks), as in a trainer that calls the loss without `look_ahead`.

    Raises:
        ConfigError: the algorithm reads a column that the step does not have.
    """
    calls = list(_calls(step, cut))
    shared: Sequence[Shared | None] = [None] * len(calls)
    if not is_alone:
        shared = loss.look_ahead([given for given, _ in calls])
    counts = float(step.columns["logp"].numel()), float(step.columns[LENGTH].numel())
    losses, tables, bounds, gradients = [], [], [], []
    for (given, _), shared_part in zip(calls, shared, strict=True):
        if shared_part is None and GROUP in given:  # groups of this call alone
            given[GROUP] = given[GROUP].unique(return_inverse=True)[1]
        given["logp"].requires_grad_()
        value, table, used_bounds = loss.scored(given, shared_part, *counts)
        (gradient,) = torch.autograd.grad(value, given["logp"])
        gradients.append(gradient[given["mask"]])
        losses.append(value.detach())
        tables.append(table)
        bounds.append(used_bounds)
    whole = table_for("a replay", concatenate(tables, CUT_BY))
    sides = cut_contributions(whole, loss.rule.weight)
    place = torch.cat([tokens for _, tokens in calls]).argsort()
    numbers = {
        "loss": torch.stack(losses).sum(),
        "clip_low": torch.stack([each.low for each in bounds]).mean(),
        "clip_high": torch.stack([each.high for each in bounds]).mean(),
        "positive_share": positive_shares(whole, loss.rule.weight)[0],
        "clip_fraction": clipped_fractions(whole.slope, whole.advantage)[0],
    }
    tokens = {
        "response": torch.cat([table.sequence for table in tables]),
        "advantage": whole.advantage,
        "ratio": whole.ratio,
        "clipped": clipped_mask(whole.slope, whole.advantage),
        "gradient": torch.cat(gradients),
    }
    names = ("positive", "negative", "positive_unclipped", "negative_unclipped")
    return Replayed(
        {name: float(value) for name, value in numbers.items()},
        [(float(each.low), float(each.high)) for each in bounds],
        dict(zip(names, (float(side) for pair in sides for side in pair), strict=True)),
        {name: values[place] for name, values in tokens.items()},
    )


def cuts(step: Step) -> dict[str, Tensor]:
    """Returns ways to cut an update into micro-batches, by name; each is the number of a response's, [B]."""
    part, length = step.columns[PART], step.columns[LENGTH]
    # Responses without tokens are with another one, so that every micro-batch has some.
    rows = torch.arange(len(part)).where(length > 0, length.argmax())
    return {"recorded": part, "whole": torch.zeros_like(part), "single responses": rows}


def difference(one: Replayed, other: Replayed) -> float:
    """Returns the length of the difference of two gradients as a share of the other's length; 0 if equal."""
    gradient, base = one.tokens["gradient"], other.tokens["gradient"]
    gap = (gradient - base).norm()
    return float(gap / base.norm()) if gap else 0.0


def with_advantages_of(loss: PolicyLoss, step: Step) -> Step | None:
    """Returns a step with the algorithm's own advantages, from its rewards; None: they are not recorded for
    whole groups of one size. A group that was not trained on, though its rewards differ, has none.
    """
    if not {GROUP, REWARD} <= step.columns.keys():
        return None
    number, sizes = step.columns[GROUP].unique(return_inverse=True, return_counts=True)[1:]
    if (sizes != sizes[0]).any() or sizes[0] < 2:
        return None
    order = number.argsort(stable=True)
    rewards = step.columns[REWARD][order].view(len(sizes), -1)
    by_response = torch.empty_like(step.columns[REWARD])
    by_response[order] = loss.advantages(rewards).flatten().to(by_response)
    row = torch.arange(len(number)).repeat_interleave(step.columns[LENGTH])
    recorded = step.columns["advantages"]
    trained = torch.zeros(len(sizes)).index_add(0, number[row], recorded.abs().float()) > 0
    trained |= (rewards == rewards[:, :1]).all(1)
    advantages = (by_response * trained[number])[row].to(recorded)
    return replace(step, columns={**step.columns, "advantages": advantages})


def _calls(step: Step, cut: Tensor) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Yields the arguments of the loss for each micro-batch, and the numbers of its tokens."""
    length = step.columns[LENGTH]
    row_of = torch.arange(len(length)).repeat_interleave(length)
    number = cut.unique(return_inverse=True)[1]
    rows = number.argsort(stable=True).split(number.bincount().tolist())
    sizes = torch.zeros(len(rows), dtype=torch.long).index_add(0, number, length)
    tokens = number[row_of].argsort(stable=True).split(sizes.tolist())
    position = torch.arange(len(row_of)) - (length.cumsum(0) - length)[row_of]
    known = {"position": position, **{name: step.columns[name] for name in step.columns if name in READ}}
    for members, places in zip(rows, tokens, strict=True):
        mask = torch.arange(max(int(length[members].max()), 1)) < length[members].unsqueeze(1)
        given = {
            name: values.new_zeros(mask.shape).masked_scatter(mask, values[places])
            for name, values in known.items()
        }
        given |= {"mask": mask, "sequence": members}
        if GROUP in step.columns:
            given[GROUP] = step.columns[GROUP].unique(return_inverse=True)[1][members]
        yield given, places
