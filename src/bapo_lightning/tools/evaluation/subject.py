"""`checkpoint=`: the subject of an evaluation, and the settings inherited from its run. Needs no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from bapo_lightning.configuration.targets import TARGET, UNREADABLE
from bapo_lightning.modules.policy.folder import (
    PACKAGE_PREFIX,
    hub_problem,
    model_digests,
    model_folder_problems,
    model_path,
    refuse_other_models,
)
from bapo_lightning.runs.resume import first_good
from bapo_lightning.system.errors import CheckpointError, ConfigError
from bapo_lightning.system.hub import is_hub_name
from bapo_lightning.system.run_folder import checkpoint as checkpoint_folder
from bapo_lightning.system.run_folder.checkpoint import MANIFEST, TRAINER_FILE, Checkpoint
from bapo_lightning.system.run_folder.config_keys import value_of
from bapo_lightning.system.run_folder.record import read_config, read_manifest

Config = dict[str, Any]
# Keys inherited from the run, and their values for a model that comes without one.
INHERITED: dict[str, Any] = {
    "rollout.temperature": 0.6,
    "scale.max_new_tokens": 4096,
    "model.dtype": "float32",
    "data.prompt": None,
    "reward": None,
    "environment": None,
    "scale.max_feedback_tokens": 0,
    "data.validation": {},
}
# Keys of a run's model that identify the weights; kernels and memory only matter to training.
MODEL_KEYS = ("path", "made_by", "lora")
_EXTRAS = ("agent", "math", "openenv", "python", "textarena", "verifiers")
_ROOMS = ("data", "environments", "rewards", "tiny_worlds", *(f"extras.{name}" for name in _EXTRAS))
_OURS = tuple(f"bapo_lightning.{room}." for room in _ROOMS)
_NAMES_CODE = ("functions", "command")  # options there that name code: functions, a program to start
CHOICES_WITHOUT_RUN = ("data/prompt=boxed", "reward=math")


@dataclass(frozen=True)
class Subject:
    """Subject of an evaluation: a checkpoint of a run, or a model as its files are."""

    name: str
    # source of architecture and tokenizer, and without a checkpoint of the weights too; `path`, maybe more
    model: Config
    run: Config | None = None  # resolved configuration of the run
    checkpoint: Checkpoint | None = None

    @property
    def version(self) -> int:
        """Policy version of the weights; 0 for a model that was not trained here."""
        return self.checkpoint.version if self.checkpoint is not None else 0

    @property
    def date(self) -> datetime:
        """The date that chat templates write: the run's, or today's."""
        manifest = read_manifest(self.checkpoint.path.parents[1]) if self.checkpoint is not None else {}
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return datetime.fromisoformat(manifest["date"]) if "date" in manifest else today

    @property
    def description(self) -> str:
        """Description for people."""
        if self.checkpoint is None:
            return f"{self.model['path']}"
        return f"{self.checkpoint.path} (policy version {self.version}, its digests are right)"


def belongs_to_run(path: str) -> bool:
    """Whether `path` is a run folder or one of its checkpoints, good or not."""
    return (Path(path) / MANIFEST).is_file() or (Path(path) / "config.yaml").is_file()


def find_subject(path: str) -> Subject:
    """Returns the subject of `checkpoint=path`. Raises ConfigError, or CheckpointError if none is good."""
    folder = Path(path)
    if (folder / MANIFEST).is_file():
        return _of_run(checkpoint_folder.verify(folder.absolute()))
    if belongs_to_run(path):
        return _of_run(_newest_good(folder.absolute()))
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ConfigError([
            f"checkpoint={path} is neither a run folder (config.yaml) nor a checkpoint ({MANIFEST}) nor a "
            "model (config.json); write one like outputs/<experiment>/<run>"
        ])  # fmt: skip
    if not (folder.is_dir() or path.startswith(PACKAGE_PREFIX) or is_hub_name(path)):
        raise ConfigError([
            f"checkpoint={path} does not exist; write a run folder like outputs/<experiment>/<run>, one of "
            "its checkpoints, a model folder, or a hub name (owner/name)"
        ])  # fmt: skip
    model = {"path": path}
    _check(model, "checkpoint")
    return Subject(path.rstrip("/").rpartition("/")[2], model)


def inherit(config: DictConfig, subject: Subject) -> list[str]:
    """Fills open keys from the run, or with defaults; returns "key=value" texts. Raises ConfigError if a
    value of the run names code that is neither part of this package nor trusted.
    """
    filled, foreign = list[str](), list[str]()
    run = OmegaConf.create(subject.run) if subject.run is not None else None
    if config.k is None:
        config.k = validation_samples(subject.run) if subject.run is not None else 1
        filled.append(f"k={config.k}")
    for key, default in INHERITED.items():
        if OmegaConf.select(config, key) not in (None, {}):
            continue
        value = default if run is None else OmegaConf.select(run, key, default=default)
        plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        foreign += _foreign_code(plain, key, config.trusted)
        OmegaConf.update(config, key, value, merge=False, force_add=True)
        filled.append(f"{key}={_short(value)}")
    if foreign:
        raise ConfigError(foreign)
    config.model = {**subject.model, "dtype": config.model.dtype}
    config.name = config.name or subject.name
    return filled


def _foreign_code(node: Any, key: str, trusted: Collection[str]) -> Iterator[str]:
    """Yields the names in a run's configuration that would run code: from a run folder that someone else made
    only this package's own rewards, environments and data are called.
    """
    for name, value in node.items() if isinstance(node, dict) else ():
        place = f"{key}.{name}"
        if (name == TARGET and not _is_ours(str(value))) or (name in _NAMES_CODE and value):
            for text in value if isinstance(value, list) and name == "functions" else [value]:
                module = str(text).partition(".")[0] if name in (TARGET, "functions") else name
                if module not in trusted:
                    yield (
                        f"{place}={_short(value)}, in the config.yaml of the run, would run code; if you "
                        f"trust it, write trusted=[{module}], or another {key.partition('.')[0]}"
                    )
        else:
            yield from _foreign_code(value, place, trusted)


def _is_ours(target: str) -> bool:
    """Whether a target there is an object of this package, not a module that its files import."""
    try:
        module = get_object(target).__module__ if target.startswith(_OURS) else ""
    except (*UNREADABLE, AttributeError):
        return False
    return str(module).startswith(_OURS)


def validation_samples(run: Config) -> int:
    """Samples per problem in a run's validation; the largest number of its sets."""
    by_set, usual = value_of(run, "data.validation_samples"), value_of(run, "scale.validation_samples")
    return max((by_set.get(name, usual) for name in value_of(run, "data.validation")), default=1)


def weights_digest(subject: Subject) -> str:
    """SHA-256 over the digests of the weights' files, or over the name of a hub model, which has its own."""
    files = {}
    if subject.checkpoint is not None:
        manifest = json.loads((subject.checkpoint.path / MANIFEST).read_text(encoding="utf-8"))["content"]
        kept = {name: entry for name, entry in manifest["files"].items() if name.startswith(TRAINER_FILE)}
        files = {name: entry["sha256"] for name, entry in kept.items()}
    if subject.checkpoint is None or subject.model.get("lora"):  # adapters are additions to the weights
        weights = sorted(Path(model_path(value_of(subject.model, "path"))).glob("*.safetensors"))
        hub = {"hub": value_of(subject.model, "path")}
        files |= {file.name: checkpoint_folder.digest(file) for file in weights} or hub
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _of_run(checkpoint: Checkpoint) -> Subject:
    run_folder = checkpoint.path.parent.parent
    run = read_config(run_folder)
    _check(value_of(run, "model"))  # its architecture and tokenizer are needed
    _check_models(run_folder, run)
    model = {key: value for key, value in value_of(run, "model").items() if key in MODEL_KEYS}
    return Subject(f"{run_folder.name}-{checkpoint.path.name}", model, run, checkpoint)


def _check_models(run_folder: Path, run: Config) -> None:
    """Raises DataError if the run's model folder has changed, except for weights that a checkpoint has."""
    now = {"model.path": model_digests(value_of(run, "model.path"))}
    refuse_other_models(read_manifest(run_folder).get("models", {}), now, run, f" ({run_folder})")


def _newest_good(folder: Path) -> Checkpoint:
    newest, reasons = first_good(checkpoint_folder.list_checkpoints(folder / "checkpoints"))
    if newest is None:
        reason = f"no checkpoint is good ({reasons})" if reasons else "it has no checkpoint yet"
        raise CheckpointError(f"checkpoint={folder}: {reason}; name another run, or a model folder")
    return newest


def _check(model: Config, key: str = "model.path") -> None:
    path, made_by = value_of(model, "path"), model.get("made_by")
    problems = list(model_folder_problems(path, made_by))
    if made_by is None and (unreachable := hub_problem(path, key)) is not None:
        problems.append(unreachable)
    if problems:
        raise ConfigError(problems)


def _short(value: Any) -> str:
    if isinstance(value, DictConfig) and TARGET in value:
        return str(value[TARGET]).rpartition(".")[2]
    return (",".join(map(str, value)) or "none") if isinstance(value, DictConfig) else str(value)
