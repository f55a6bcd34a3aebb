"""Losses for other trainers: turns the name of an algorithm into a loss of padded log-probs.

    bapo = policy_loss("bapo")
    loss, metrics = bapo(logp, behaviour_logp, advantages, mask)

An update of several micro-batches has one pair of bounds, which are found from all of its tokens first:

    for part, shared in zip(parts, bapo.look_ahead(parts)):  # parts: keyword arguments of the calls
        loss, metrics = bapo(**part, shared=shared)
        loss.backward()

Shapes: B responses of up to T tokens; N tokens inside the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hydra.core.global_hydra import GlobalHydra
from torch import Tensor, nn

from bapo_lightning.configuration.compose import compose_run, hydra_overrides
from bapo_lightning.configuration.parse import parse
from bapo_lightning.configuration.sections import AlgorithmNodes
from bapo_lightning.configuration.targets import target_problems
from bapo_lightning.modules.bound_rules import BoundRule
from bapo_lightning.modules.token_tables import prepared_for_update
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.objective import (
    CANDIDATES,
    Objective,
    needs_of,
    prepares,
    token_loss,
    with_slopes,
)
from bapo_lightning.objectives.surrogate import clipped_fractions
from bapo_lightning.objectives.token_table import ON_DEMAND, TokenTable, table_of
from bapo_lightning.objectives.weighting import weigh
from bapo_lightning.system.errors import ConfigError, suggestion
from bapo_lightning.system.ranks.collectives import num_ranks

OURS_ALONE = {"log_z", *CANDIDATES}  # columns that need a head of the policy, or the engine's candidates
OWN = ("logp", "behaviour_logp", "advantages", "mask")
# Numbers of tokens that a recorded update has; the defaults of others are 0 or their place in the call.
NUMBERS = ("age", "origin", "position", "sequence")
OPTIONAL = (
    *("proximal_logp", "correction", "entropy", "group"),
    *sorted(ON_DEMAND.keys() - OURS_ALONE),
    *NUMBERS,
)
PUTS_IN = ("open", "retry")  # methods of rules that put other responses into a batch


@dataclass(frozen=True)
class Shared:
    """Values that a micro-batch shares with the rest of its update."""

    bounds: BoundSearch
    columns: Mapping[str, Tensor]  # prepared by the objective from the whole update, [N] or 0-dim
    num_tokens: Tensor  # of the update, 0-dim
    num_sequences: Tensor  # of the update, 0-dim


class PolicyLoss(nn.Module):
    """Objective, bounds and weighting of an algorithm, for a trainer that has everything else. Its
    `state_dict` holds the memory that some algorithms have of earlier updates.
    """

    def __init__(self, nodes: AlgorithmNodes, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.name = nodes.name
        self.settings = settings  # plain values of the section `algorithm`
        self.objective: Objective = nodes.objective.make(1)
        self.rule: BoundRule = nodes.bounds.make(BoundRule)
        self.weighting: Callable[..., Tensor] = nodes.weighting.make()
        # rewards [P, G] of P groups -> advantages [P, G], for a trainer whose own advantages differ
        self.advantages: Callable[[Tensor], Tensor] = nodes.advantages.make()
        # Keys of the algorithm's rules for groups, which the trainer must follow itself.
        self.left_out = tuple(f"rules.{name}" for name, node in nodes.rules.items() if node is not None)

    @property
    def looks_ahead(self) -> bool:
        """Whether the loss of a token depends on the whole update, by a search for bounds or an objective
        that prepares columns. If not, `look_ahead` reads only masks.
        """
        return self.rule.searches or prepares(self.objective)

    @torch.no_grad()
    def look_ahead(self, parts: Sequence[Mapping[str, Tensor]]) -> list[Shared]:
        """Returns for each micro-batch of an update, in order, the values that it shares. If bounds are
        searched, every rank must call it with equally many parts: sums go over torch's default group.

        Args:
            parts: keyword arguments of the later calls, without `shared`; log-probs must come from the
                weights before the update.

        Raises:
            ConfigError: see `forward`; or an objective that prepares columns is used on several ranks.
        """
        if prepares(self.objective) and num_ranks() > 1:
            problem = f"algorithm={self.name} looks at the tokens of all ranks, which only bapo-train gathers"
            raise ConfigError([f"{problem}; train on one, or with another algorithm"])
        num_tokens = torch.stack([part["mask"].sum() for part in parts]).sum().clamp_min(1).float()
        num_sequences = torch.full_like(num_tokens, sum(len(part["mask"]) for part in parts))
        tables, first = [], 0
        for part in parts:
            tables.append(self._table(part, num_tokens, num_sequences, first).detach())
            first += len(part["mask"])
        shared: list[Shared] = []
        for scope in self.rule.scopes(tables):
            bounds = self.rule.choose(scope)
            columns = prepared_for_update(self.objective, scope, bounds, len(scope))
            shared += [Shared(bounds, values, num_tokens, num_sequences) for values in columns]
        return shared

    def forward(
        self,
        logp: Tensor,
        behaviour_logp: Tensor,
        advantages: Tensor,
        mask: Tensor,
        *,
        shared: Shared | None = None,
        num_tokens: float | Tensor | None = None,
        num_sequences: float | Tensor | None = None,
        **columns: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of a micro-batch, 0-dim, and its metrics: `clip_low`, `clip_high` and, if they are
        searched, `positive_share` at these bounds and `target_met`; and `clip_fraction` of its tokens.

        Losses of an update add up to the mean that the algorithm's weighting is named after.

        Args:
            logp: log-probs under the policy, [B, T] nats; gradients flow.
            behaviour_logp: log-probs under the policy that sampled, [B, T] nats.
            advantages: [B], [B, 1] or [B, T].
            mask: tokens that are trained on, [B, T] bool or 0/1; values outside of it are not used.
            shared: result of `look_ahead` for this micro-batch; None: it is the whole update.
            num_tokens: number of tokens in the mean, by default the update's on this rank. A trainer that
                averages gradients over ranks gives the mean of its ranks' counts.
            num_sequences: number of responses, likewise.
            columns: `proximal_logp`, the denominator of ratios in place of `behaviour_logp`; `correction`, a
                factor of each weight; columns that some algorithms read: `entropy`, `group` (number of
                the response's prompt in the update, from 0) and `token_table.ON_DEMAND`; and `NUMBERS`, see
                `TokenTable`. [B] or [B, T].

        Raises:
            ConfigError: the algorithm reads a column that is not given.
            ValueError: shapes do not fit, or a column is unknown.
        """
        given = dict(zip(OWN, (logp, behaviour_logp, advantages, mask), strict=True)) | columns
        loss, table, bounds = self.scored(given, shared, num_tokens, num_sequences)
        metrics = {"clip_low": bounds.low, "clip_high": bounds.high}
        if self.rule.searches:
            metrics |= {"positive_share": bounds.value, "target_met": bounds.met}
        return loss, metrics | {"clip_fraction": clipped_fractions(table.slope, table.advantage)[0]}

    def scored(
        self,
        given: Mapping[str, Tensor],
        shared: Shared | None = None,
        num_tokens: float | Tensor | None = None,
        num_sequences: float | Tensor | None = None,
    ) -> tuple[Tensor, TokenTable, BoundSearch]:
        """Returns the loss of a micro-batch, 0-dim, its tokens with their slopes, without graph, and the
        bounds of the update. Arguments and errors: see `forward`.
        """
        self.to(given["logp"].device)
        if shared is None:
            (shared,) = self.look_ahead([given])
        counts = (
            shared.num_tokens if num_tokens is None else num_tokens,
            shared.num_sequences if num_sequences is None else num_sequences,
        )
        table = self._table(given, *counts)
        if "entropy_gradient" in needs_of(self.objective) and not table.entropy.requires_grad:
            raise ConfigError([f"algorithm={self.name} needs gradients of entropy; give one with its graph"])
        loss, table = token_loss(table, shared.bounds, shared.columns, self.objective)
        return loss, with_slopes(table.detach(), self.objective), shared.bounds

    def _table(
        self,
        given: Mapping[str, Tensor],
        num_tokens: float | Tensor,
        num_sequences: float | Tensor,
        first: int = 0,
    ) -> TokenTable:
        """Returns the token table of a call whose first response has the number `first` in the update."""
        for name in given.keys() - {*OWN, *OPTIONAL}:
            raise ValueError(f"{name} is not a column of a policy loss; {suggestion(name, OPTIONAL)}")
        kept = given["mask"].bool()
        responses = torch.arange(first, first + len(kept), device=kept.device)
        defaults = {
            "weight": weigh(self.weighting, kept, num_tokens, num_sequences),
            "sequence": responses,
            "position": kept.cumsum(1) - 1,
        }
        defaults |= {"age": torch.zeros_like(responses)}  # formulas only use ages to distinguish tokens
        known = {name: flat(name, values, kept) for name, values in {**defaults, **given}.items()}
        del known["mask"]
        for name in ("entropy", "group", *sorted(needs_of(self.objective) & ON_DEMAND.keys())):
            known.setdefault(name, _Absent(name, self.name))
        count = torch.ones_like(known["weight"])
        known["advantage"] = known.pop("advantages")
        correction = known.pop("correction", None)
        table = table_of(**known, count=count)
        return table if correction is None else table.corrected(correction)


def policy_loss(algorithm: str, *overrides: str) -> PolicyLoss:
    """Returns the loss of an algorithm in `conf/algorithm`, or of a custom one on Hydra's search path.

    Args:
        algorithm: its name.
        overrides: keys as on the command line, `"algorithm.positive_share_target=0.5"`; some weightings use
            `"scale.max_new_tokens=1024"`.

    Raises:
        ConfigError: it is unknown, an option is wrong, or the algorithm is more than a loss.
    """
    plain = algorithm_section(algorithm, *overrides)
    nodes, faults = parse(AlgorithmNodes, plain)
    problems = [f"algorithm.{text}" for text in faults] + list(target_problems(plain, "algorithm"))
    if nodes is not None and not problems:
        problems = list(_more_than_a_loss(nodes))
        if not problems:
            return PolicyLoss(nodes, plain)
    raise ConfigError(problems)


def algorithm_section(algorithm: str, *overrides: str) -> dict[str, Any]:
    """Returns the plain section `algorithm` of a configuration. Arguments and errors: see `policy_loss`."""
    of_caller = GlobalHydra.instance().hydra  # its search path does not have our files
    GlobalHydra.instance().clear()
    try:
        # Without an experiment, whose numbers belong to its task.
        arguments = ["~experiment", "name=losses", *hydra_overrides({"algorithm": algorithm}), *overrides]
        plain: dict[str, Any] = compose_run(arguments)["algorithm"]
        return plain
    finally:
        GlobalHydra.instance().hydra = of_caller


def _more_than_a_loss(nodes: AlgorithmNodes) -> Iterator[str]:
    remedy = "run it with bapo-train"
    for name in nodes.stage_nodes:
        yield (
            f"algorithm={nodes.name} is more than a loss: stages.{name} changes a batch before it is trained "
            f"on; {remedy}"
        )
    for name, node in nodes.rules.items():
        if node is not None and any(node.object.has(method) for method in PUTS_IN):
            yield f"algorithm={nodes.name} is more than a loss: rules.{name} changes responses; {remedy}"
    for column in sorted(needs_of(nodes.objective.object) & OURS_ALONE):
        yield (
            f"algorithm={nodes.name} needs {column} ({ON_DEMAND[column]}), which only our policy and engines "
            f"have; {remedy}"
        )


def flat(name: str, values: Tensor, kept: Tensor) -> Tensor:
    """Returns the kept `values`, [N]; half precision becomes float32."""
    rows = values.unsqueeze(1) if values.dim() == 1 else values
    if rows.dim() != 2 or len(rows) != len(kept) or rows.shape[1] not in (1, kept.shape[1]):
        shapes = f"[{len(kept)}] or {list(kept.shape)}"
        raise ValueError(f"{name} must have the shape {shapes} of the mask's rows, got {list(values.shape)}")
    taken = rows.expand(kept.shape)[kept]
    return taken.to(torch.promote_types(taken.dtype, torch.float32)) if taken.is_floating_point() else taken


class _Absent(Tensor):
    """Column that was not given; reading it raises a ConfigError."""

    @staticmethod
    def __new__(cls, name: str, algorithm: str) -> _Absent:
        absent: _Absent = Tensor._make_subclass(cls, torch.empty(0))
        absent.problem = f"algorithm={algorithm} reads {name}, which is not given; pass {name}=..."
        return absent

    problem: str

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Raises ConfigError, unless the table is only detached from its graph."""
        if func is Tensor.detach:
            return args[0]
        flat = [item for arg in args for item in (arg if isinstance(arg, list | tuple) else [arg])]
        raise ConfigError([next(item.problem for item in flat if isinstance(item, _Absent))])
