"""Held-out accuracy during training, and stock callbacks that wait for a validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from bapo_lightning.callbacks.order import Order
from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.data.rollouts.answers import ValidationSet, outcome_of
from bapo_lightning.data.rollouts.observer import unread
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.worker import WorkerDataModule
from bapo_lightning.report.progress.terminal import get_console
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.phases import phase
from bapo_lightning.system.printable import say
from bapo_lightning.system.values import CountOrZero
from bapo_lightning.types import Sample, ScoreStatus

_INDENT = 13  # characters before the text of a preview


@dataclass(eq=False)
class Validation(Callback):
    """Emits `val/<set>/{avg@k, pass@k, maj@k, ...}` every so many updates and after the last one, with the
    weights after the update and in that update's record, unlike Lightning's validation loop; and once before
    the first update, in its record unless that has numbers already.
    """

    order: ClassVar[Order] = Order.MEASURE
    every: CountOrZero  # updates between two validations; 0 never validates
    first: bool = True  # whether to validate before the first update as well
    show: CountOrZero = 2  # problems of each set whose first answer is printed
    validation_sets: Sequence[ValidationSet] = ()  # set by the run
    _before: dict[str, float] = field(init=False, default_factory=dict)  # measured before the first update
    _lost: EngineError | None = field(init=False, default=None)  # of an engine that died in a validation

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Answers the sets with the weights at the start of training."""
        if self.every and self.first and not trainer.global_step:
            self._before = self._measure(trainer, 0)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Gives the engine the new weights and answers the sets."""
        done = batch_idx + 1
        num_updates = trainer.datamodule.num_updates  # type: ignore[attr-defined]
        if self.every and (done % self.every == 0 or done == num_updates):
            try:
                outputs["metrics"] |= self._measure(trainer, done)
            except EngineError as error:
                if trainer.world_size > 1:
                    raise
                self._lost = error  # the update is first recorded and can be saved
        elif batch_idx == 0:
            outputs["metrics"] |= self._before
            outputs["before_training"] = self._before.keys()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Raises EngineError if the validation after the previous update met one."""
        self.on_train_end(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raises EngineError if the last validation met one."""
        if self._lost is not None:
            raise self._lost

    @phase("validation")
    def _measure(self, trainer: Trainer, done: int) -> dict[str, float]:
        data_module = cast(RolloutDataModule, trainer.datamodule)  # type: ignore[attr-defined]
        if not trainer.is_global_zero:
            cast(WorkerDataModule, data_module).assist()
            return {}
        metrics: dict[str, float] = {}
        with data_module.engine_for_evaluation():
            for validation_set in self.validation_sets:
                answers = validation_set.answers(data_module.sampler)
                measured = validation_set.metrics(answers)
                metrics |= measured
                shown = answers[:: validation_set.num_samples][: self.show]
                lines = console_lines(validation_set, shown, measured, done)
                if not done and (said := unread_answers(validation_set.name, answers, data_module.sampler)):
                    lines.append(f"warning: {said}")
                say("\n".join(lines))
        return metrics


def console_lines(
    validation_set: ValidationSet, shown: Sequence[Sample], measured: Mapping[str, float], done: int
) -> list[str]:
    """Accuracy on a set after `done` updates, and one answer to each of its first problems."""
    name = f"{validation_set.name}/avg@{validation_set.num_samples}"
    when = f"after {done} updates" if done else "before training"
    lines = [f"held out {when}: {name} {measured[f'val/{name}']:.3f}"]
    for problem, answer in zip(validation_set.problems, shown, strict=False):
        prompt, said = " ".join(problem.prompt.split()), " ".join(answer.text.split())
        room = get_console().width - _INDENT
        label = f"  {answer.score.status:<10} "
        if len(f"{prompt} -> {said}") <= room:
            lines.append(f"{label}{prompt} -> {said}")
        else:
            lines += [f"{label}{one_line(prompt, room)}", f"{'->':>{_INDENT - 1}} {one_line(said, room)}"]
    return lines


def unread_answers(name: str, answers: Sequence[Sample], sampler: RolloutSampler) -> str | None:
    """Says why no answer to a set is right, if most are cut or unreadable; returns None otherwise."""
    outcomes = [outcome_of(answer) for answer in answers]
    cut = sum(outcome.is_cut for outcome in outcomes)
    unparsable = sum(outcome.status is ScoreStatus.UNPARSABLE for outcome in outcomes)
    has_right = any(outcome.is_correct for outcome in outcomes)
    said = unread((len(answers), cut, unparsable), sampler.limits, has_right)
    return f"{name}: {said}" if said else None


def one_line(text: str, width: int) -> str:
    """Text as one line of at most `width` characters, its middle left out if it is longer."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    head = width // 3
    return f"{line[:head]} ... {line[len(line) - (width - head - 5) :]}"


def measured_now(outputs: Mapping[str, Any]) -> set[str]:
    """Returns the metrics that an update measured, without those that only the first weights had."""
    return outputs["metrics"].keys() - outputs.get("before_training", ())


class StockHooks(Callback):
    """Calls `on_validation_end` of EarlyStopping and ModelCheckpoint after updates that measured the metric
    they monitor: a run has neither epochs nor a validation loop.
    """

    order: ClassVar[Order] = Order.REACT

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Calls them."""
        measured = trainer.strategy.broadcast(sorted(measured_now(outputs)))  # other ranks measure less
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, EarlyStopping | ModelCheckpoint) and callback.monitor in measured:
                callback.on_validation_end(trainer, pl_module)
