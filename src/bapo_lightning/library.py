"""The package from Python: `fit` is `make train`; `BapoModule` and `RolloutDataModule` go into any Trainer.

    from bapo_lightning import BapoModule, RolloutDataModule, configure, fit

    run = fit(model="models/mine", data="mine.jsonl", reward=my_function, algorithm="bapo", staleness=8)

    config = configure(model="models/mine", data="mine.jsonl", reward=my_function)
    lightning.Trainer().fit(BapoModule(config), datamodule=RolloutDataModule(config))

Defaults come from `conf/`; any key can be given as on the command line: `fit("seed=1", "rollout=vllm")`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import DataLoader

from bapo_lightning.configuration.compose import compose_run, hydra_overrides
from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.configuration.group_names import keys_of_place
from bapo_lightning.configuration.origins import name_origins
from bapo_lightning.configuration.run_config import RunConfig, share_problems
from bapo_lightning.configuration.validate import validate
from bapo_lightning.configuration.wording import value_problem
from bapo_lightning.data import data_module
from bapo_lightning.data.batches.batch import RolloutLoader
from bapo_lightning.data.problems.prompts import dated
from bapo_lightning.modules import bapo_module
from bapo_lightning.modules.policy.folder import models_behind, refuse_other_models
from bapo_lightning.rewards.functions import is_reward_function
from bapo_lightning.runs.build import build_engine, data_parts, module_parts, validation_sets
from bapo_lightning.runs.callbacks import build_monitors
from bapo_lightning.runs.inputs import read_inputs
from bapo_lightning.runs.resume import run_to_continue
from bapo_lightning.runs.train import ignore_expected_warnings, train
from bapo_lightning.system.errors import ConfigError, exits_refused, suggestion
from bapo_lightning.system.ranks.rank_group import ALONE
from bapo_lightning.system.run_folder.record import RunRecord, read_config, read_run
from bapo_lightning.system.values import Size, imported
from bapo_lightning.tools.evaluation.subject import find_subject
from bapo_lightning.tools.export.checkpoint_weights import load_checkpoint_weights
from bapo_lightning.tools.replay.step import capture as capture


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_place(value: Any) -> bool:
    return _is_text(value) or isinstance(value, Path)


def _is_reward(value: Any) -> bool:
    return _is_text(value) or callable(value)


def _are_rewards(value: Any) -> bool:
    return _is_reward(value) or (
        isinstance(value, list | tuple) and bool(value) and all(map(_is_reward, value))
    )


def _is_size(value: Any) -> bool:
    return type(value) is int and value_problem(Size, "staleness", value) is None


# Argument -> check of a value, description of valid ones, beginnings of overrides with the same meaning.
_NAMED: dict[str, tuple[Callable[[Any], bool], str, tuple[str, ...]]] = {
    "experiment": (_is_text, "the name of one experiment", ("experiment=",)),
    "model": (_is_place, "one name or path", ("model=", "model.path=")),
    "data": (_is_place, "one name or path", ("data=", "data.train.path=")),
    "reward": (_are_rewards, "a name, a function, or a list of them", ("reward=", "reward.functions=")),
    "algorithm": (_is_text, "the name of one algorithm", ("algorithm=",)),
    "staleness": (
        *(_is_size, "a whole number in [1, 1000000] (1 is on-policy)"),
        ("regime=", "regime.epochs=", "regime.minibatches="),
    ),
}
Reward = str | Callable[..., Sequence[float | None]]


def configure(
    *overrides: str,
    experiment: str | None = None,
    model: str | Path | None = None,
    data: str | Path | None = None,
    reward: Reward | Sequence[Reward] | None = None,
    algorithm: str | None = None,
    staleness: int | None = None,
) -> RunConfig:
    """Returns the checked configuration of a run.

    Args:
        overrides: keys as on the command line, `"scale.group_size=16"`.
        experiment: of `conf/experiment/`; None: `own` if a model or data are given, else `quickstart`.
        model: a choice of `conf/model/`, a folder, or a name on the hub.
        data: a choice of `conf/data/`, or a table (see docs/data.md), a tenth of which is held out.
        reward: a choice of `conf/reward/`, or functions of TRL's signature, importable by their names.
        algorithm: a choice of `conf/algorithm/`.
        staleness: updates on each rollout batch; 1 is on-policy.

    Raises:
        ConfigError: lists all mistakes.
    """
    given = (experiment, model, data, reward, algorithm, staleness)
    keys = _overrides(overrides, dict(zip(_NAMED, given, strict=True)))
    with name_origins(keys):
        return validate(_composed(keys, staleness))


def fit(*overrides: str, **named: Any) -> RunRecord:
    """Trains as `make train` does, and returns the record of the run: its folder, configuration and metrics.

    Args:
        overrides: keys as on the command line, `"run_folder=outputs/mine"` or `"resume=auto"`.
        named: see `configure`.

    Raises:
        BapoLightningError: the configuration is wrong, or the run failed; its folder keeps the results.
    """
    for name in named.keys() - _NAMED.keys():
        raise ConfigError([f"fit has no argument {name}; {suggestion(name, list(_NAMED))}"])
    keys = _overrides(overrides, named)
    plain = _composed(keys, named.get("staleness"))

    def choose() -> dict[str, Any]:
        folder = run_to_continue(plain["resume"], plain)
        return (
            plain if folder is None else compose_run([*keys, *hydra_overrides({"run_folder": str(folder)})])
        )

    with name_origins(keys), exits_refused():
        _, folder = train(plain, choose)
    return read_run(folder)


class BapoModule(bapo_module.BapoModule):
    """The update of a configuration, with its monitors, for your own Trainer."""

    def __init__(self, config: RunConfig | Mapping[str, Any]) -> None:
        """`config`: from `configure`, or from a checkpoint."""
        ignore_expected_warnings()
        self.config = config if isinstance(config, RunConfig) else validate(dict(config))
        super().__init__(**module_parts(self.config))
        self.save_hyperparameters({"config": self.config.plain})

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: str | Path, *args: Any, **kwargs: Any) -> Self:  # type: ignore[override]
        """Loads the module from a run folder, one of its checkpoints, or a file of a ModelCheckpoint.

        Raises:
            CheckpointError: a checkpoint is corrupt, or the run has none.
            ConfigError: the path is not a checkpoint.
        """
        if Path(checkpoint_path).is_file():
            return super().load_from_checkpoint(checkpoint_path, *args, **kwargs)
        checkpoint = find_subject(str(checkpoint_path)).checkpoint
        if checkpoint is None:
            remedy = f"write configure(model={str(checkpoint_path)!r})"
            raise ConfigError([f"{checkpoint_path} is a model, not a checkpoint; {remedy}"])
        module = cls(read_config(checkpoint.path.parents[1]))
        module.configure_model()
        load_checkpoint_weights(module.policy, checkpoint.path)
        return module

    def configure_callbacks(self) -> list[L.Callback]:
        """Returns monitors, alarms and the writer of `trainer.callback_metrics` and loggers, for training."""
        if self.trainer.state.fn != TrainerFn.FITTING:
            return []
        sets = getattr(self.trainer.datamodule, "validation_sets", ())  # type: ignore[attr-defined]
        return build_monitors(self.config, sets)

    def on_fit_start(self) -> None:
        """Makes the run one epoch, as long as its rollout batches, and logs every update; Lightning's
        defaults are a thousand epochs and every 50 updates.
        """
        self.trainer.fit_loop.max_epochs = 1
        self.trainer.log_every_n_steps = 1  # type: ignore[attr-defined]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds digests of the models, whose frozen weights no checkpoint holds."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["models"] = models_behind(self.config.plain)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Builds the policy first, so that it has parameters to load into. Raises DataError if a model of
        which the checkpoint does not hold everything has changed.
        """
        plain = self.config.plain
        refuse_other_models(checkpoint.get("models", {}), models_behind(plain), plain)
        self.configure_model()
        super().on_load_checkpoint(checkpoint)

    def validation_step(self, batch: int, batch_idx: int) -> None:
        """Answers a held-out set under the current weights."""
        self.log_dict(self.trainer.datamodule.validate(batch), batch_size=1)  # type: ignore[attr-defined]

    test_step = validation_step


class RolloutDataModule(data_module.RolloutDataModule):
    """Problems, engine and queue of a configuration, for your own Trainer on one device."""

    def __init__(self, config: RunConfig) -> None:
        """`config`: from `configure`, the same as the module's.

        Raises:
            DataError: the problems are not available.
        """
        self._date = datetime.now(UTC)  # that chat templates write
        inputs = read_inputs(config, self._date)
        super().__init__(**data_parts(config, inputs, build_engine(config, ALONE)))
        self._tokenizer = inputs.tokenizer
        self.validation_sets = validation_sets(config, inputs)
        self._resumed: dict[str, Any] | None = None

    def setup(self, stage: str) -> None:
        """Raises ConfigError if the Trainer has several ranks."""
        if self.trainer is not None and self.trainer.world_size > 1:
            raise ConfigError([
                "RolloutDataModule serves a Trainer of one device; for several write "
                "fit(..., 'strategy=ddp', 'trainer.devices=2'), and start the script by torchrun"
            ])  # fmt: skip

    def train_dataloader(self) -> RolloutLoader:
        """Lightning's source of batches, from the position of a checkpoint."""
        if self._resumed is not None:
            self.load_resume_state(self._resumed)
            self._resumed = None
        return super().train_dataloader()

    def val_dataloader(self) -> Any:
        """Numbers of the held-out sets; none during training, when `callbacks.validation` answers them."""
        is_called = self.trainer is not None and self.trainer.state.fn != TrainerFn.FITTING
        return DataLoader(range(len(self.validation_sets)), batch_size=None) if is_called else []  # type: ignore[arg-type]

    test_dataloader = val_dataloader

    def validate(self, index: int) -> dict[str, float]:
        """Returns `val/<set>/<metric>` of a held-out set under the module's current weights."""
        chosen = self.validation_sets[index]
        with self.engine_for_evaluation():
            return chosen.metrics(chosen.answers(self.sampler))

    def state_dict(self) -> dict[str, Any]:
        """Returns all queued and running groups, for Lightning's checkpoints."""
        return {**self.resume_state(), "date": self._date.isoformat()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps a state until the module has restored its own."""
        self._resumed, self._date = state_dict, datetime.fromisoformat(state_dict["date"])
        dated(self._tokenizer, self._date)


def _overrides(overrides: Sequence[str], named: Mapping[str, Any]) -> list[str]:
    """Returns all named arguments as overrides, followed by the written ones. Raises ConfigError for
    arguments of a wrong type, and for arguments that overrides repeat.
    """
    given = {name: value for name, value in named.items() if value is not None}
    if problems := _argument_problems(overrides, given):
        raise ConfigError(problems)
    default = "quickstart" if given.keys().isdisjoint(("model", "data")) else "own"
    keys: dict[str, Any] = {"experiment": given.get("experiment", default)}
    for group in ("model", "data"):
        if (place := given.get(group)) is not None:
            keys |= {group: place} if _is_choice(group, place) else keys_of_place(group, str(place))
    if "algorithm" in given:
        keys["algorithm"] = given["algorithm"]
    reward = given.get("reward")
    if isinstance(reward, str):
        keys["reward"] = reward
    elif reward is not None:
        functions = [reward] if callable(reward) else list(reward)
        keys |= {"reward": "functions", "reward.functions": [_name_of(function) for function in functions]}
    if (staleness := given.get("staleness")) is not None:
        keys |= {"regime": "on_policy"} if staleness == 1 else {"regime": "replay"}
        keys |= {"regime.epochs": 1, "regime.minibatches": staleness}
    return [*hydra_overrides(keys), *overrides]


def _argument_problems(overrides: Sequence[Any], named: Mapping[str, Any]) -> list[str]:
    faults = [
        f'{item!r} is not an override; write a text, "KEY=VALUE"'
        for item in overrides
        if type(item) is not str or not item.strip("= ")
    ]
    for name, value in named.items():
        fits, wanted, same = _NAMED[name]
        if not fits(value):
            several = isinstance(value, list | tuple) and name != "reward"
            faults.append(f"{name}={value!r} must be {wanted}{'; call it once for each' if several else ''}")
        clash = [item for item in overrides if str(item).startswith(same)]
        faults += [f"{name}={value!r} and {item} say the same; write one of them" for item in clash]
    return faults


def _composed(keys: Sequence[str], staleness: Any) -> dict[str, Any]:
    """Returns the resolved configuration. Raises ConfigError for an impossible staleness, since `validate`
    would name a number of minibatches, which the caller did not write.
    """
    plain = compose_run(keys)
    prompts = plain["scale"]["prompts_per_batch"]
    is_known = staleness is not None and type(prompts) is int
    if problems := list(share_problems("staleness", staleness, prompts)) if is_known else []:
        raise ConfigError(problems)
    return plain


def _is_choice(group: str, given: str | Path) -> bool:
    return isinstance(given, str) and given in choice_files(group)


def _name_of(function: Reward) -> str:
    """Returns the dotted name that imports a reward function. Raises ConfigError if there is none."""
    if isinstance(function, str):
        return function
    name = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"
    try:
        named = imported(name)
    except Exception:  # any error of the import
        named = None
    if named is not function:
        raise ConfigError([f"reward: {name} cannot be imported; define it at the top of a module or script"])
    if not is_reward_function(function):
        signature = "def f(completions, **columns) -> list[float]"
        raise ConfigError([f"reward: {name} needs TRL's signature: {signature}"])
    return name
