"""`resume=`: finds the run to continue and its checkpoint, and cuts off later records. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import yaml

from bapo_lightning.configuration.compose import (
    folder_prefix,
    has_default_folder,
    is_timed_folder,
    run_folder,
)
from bapo_lightning.modules.policy.folder import changed_models, other_model
from bapo_lightning.system.errors import CheckpointError, ConfigError, DataError
from bapo_lightning.system.run_folder.checkpoint import (
    JOURNALS,
    Checkpoint,
    list_checkpoints,
    remove_leftovers,
    set_aside,
    verify,
)
from bapo_lightning.system.run_folder.config_keys import Role, changes, makes_longer, role_of, value_of
from bapo_lightning.system.run_folder.find import unfinished
from bapo_lightning.system.run_folder.journal import Journal, JournalDigest
from bapo_lightning.system.run_folder.lock import RunLock
from bapo_lightning.system.run_folder.record import (
    SCHEDULE_FILE,
    STOPPED_EARLY,
    correct_status,
    read_config,
    read_manifest,
)
from bapo_lightning.system.run_folder.text_file import write_text

if TYPE_CHECKING:
    from bapo_lightning.configuration.run_config import RunConfig

Plain = dict[str, Any]
AUTO = "auto"
_MOST_CHANGES = 8  # largest number of refused changes that are listed
_MOST_CHARACTERS = 160  # of a listed change


@dataclass
class RunStart:
    """Start of a session: a new run, or one that continues."""

    folder: Path
    is_new: bool = True
    checkpoint: Checkpoint | None = None  # None for a continued run that was killed before its first
    changed: Sequence[str] = ()  # configuration keys that differ from the previous session
    outdated: Sequence[Path] = ()  # checkpoints that are corrupt, or newer than the chosen one
    lock: RunLock | None = field(default=None, repr=False)
    run_id: str = field(default_factory=lambda: uuid4().hex)
    # Of the run's start, for chat templates.
    date: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))

    @property
    def resume_entry(self) -> dict[str, Any] | None:
        """Manifest entry of this session; None for a new run."""
        if self.is_new:
            return None
        return {"update": self.checkpoint.update if self.checkpoint else 0, "changed": list(self.changed)}

    def prepare(
        self,
        plain: Plain,
        account: Plain | None = None,
        models: Mapping[str, Mapping[str, str]] | None = None,
        needs_first_weights: bool = True,
    ) -> None:
        """Makes the folder of a new run, or cuts back an earlier run's folder; may be killed and repeated.
        `models`: result of `models_behind`; `needs_first_weights`: whether a resumed run computes with them.

        Raises:
            ConfigError: the folder of a new run cannot be made or already exists.
            DataError: the held-out problems or the models of a resumed run have changed.
        """
        if self.is_new:
            if self.lock is None:
                make_run_folder(self.folder)
                self.lock = RunLock(self.folder)
        else:
            self._refuse_other_held_out(account or {})
            self._refuse_other_models(plain, models or {}, needs_first_weights)
            remove_leftovers(self.folder / "checkpoints")
            for folder in self.outdated:
                print(f"moved aside: {set_aside(folder)}")
            for name in JOURNALS:
                known = self.checkpoint.journals.get(name) if self.checkpoint else None
                journal = Journal(self.folder / name)
                journal.cut(known["bytes"] if known else 0)
                journal.repair()  # the cut may tear a row of changed records
        write_config(self.folder, plain)

    def _refuse_other_held_out(self, account: Plain) -> None:
        is_requested = any(role_of(change.partition(":")[0]) is Role.VALIDATION for change in self.changed)
        if self.checkpoint is None or is_requested:
            return
        before = (read_manifest(self.folder).get("problems") or {}).get("validation", {})
        for name, part in account.get("validation", {}).items():
            if before.get(name, {}).get("digest", part["digest"]) != part["digest"]:
                raise DataError(
                    f"data.validation.{name}: the {part['kept']} held-out problems differ from "
                    f"{self.folder}'s, so that its curve would change its meaning: their file has changed; "
                    "put it back, or begin a new run"
                )

    def _refuse_other_models(
        self, plain: Plain, models: Mapping[str, Mapping[str, str]], needs_first_weights: bool
    ) -> None:
        if self.checkpoint is None:
            return
        for key, part in changed_models(read_manifest(self.folder).get("models", {}), models):
            text = other_model(key, part, value_of(plain, key))
            if key != "model.path" or part != "weights" or needs_first_weights:
                raise DataError(f"{text}; restore the files, or begin a new run")
            print(f"warning: {text}; the run continues with the weights of its checkpoint", flush=True)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the lock, which only rank 0 holds."""
        return {**self.__dict__, "lock": None}

    def release(self) -> None:
        """Lets other processes use the folder."""
        if self.lock is not None:
            self.lock.release()


def open_run(config: RunConfig) -> RunStart | None:
    """Returns the start of a run in the folder that `run_to_continue` found; None if it is finished. Changes
    nothing yet except the status of a killed run. Raises ConfigError: the configuration differs from the
    run's; CheckpointError: another process uses the run folder, or no checkpoint is good.
    """
    folder = config.folder
    if config.resume is None or not folder.exists():
        return RunStart(folder)
    lock = RunLock(folder)
    correct_status(folder, "interrupted")
    if has_lost_config(folder):
        if config.resume == AUTO:
            raise _lost_config(folder)
        print(f"{folder} has lost its config.yaml: it continues with the given configuration")
        stored = config.plain
    elif not (folder / "config.yaml").exists():
        refuse_foreign_files(folder, "no run to resume")
        print(f"resume={config.resume}: {folder} is empty; a new run begins")
        return RunStart(folder, lock=lock)
    else:
        stored = read_config(folder)
    allowed, refused = changes(stored, config.plain)
    if refused:
        stay = f"to continue this run write the values of {folder / 'config.yaml'}"
        if stored.get("name") != (name := config.plain["name"]):
            named = f"resume={config.resume}: {folder} is a run of experiment {stored.get('name')}"
            raise ConfigError([f"{named}, this is {name}; to begin another leave resume out"])
        problems = [
            f"{_on_one_line(change)}: {folder} began with another value" for change in refused[:_MOST_CHANGES]
        ]
        if more := len(refused) - len(problems):
            problems.append(f"... and {more} more")
        raise ConfigError([*problems, f"{stay}; to begin another leave resume out"])
    if is_finished(folder, stored, config.plain):
        print(f"{folder} {_why_done(read_manifest(folder))}")
        return None
    for change in allowed:
        print(f"changed since the previous session: {change}")
    checkpoint, outdated = choose_checkpoint(folder, config.resume)
    if checkpoint is None:
        print(f"{folder} has no checkpoint yet: it starts again")
    start = RunStart(folder, False, checkpoint, allowed, outdated, lock)
    manifest = read_manifest(folder)
    start.run_id = manifest.get("id") or (checkpoint.run if checkpoint else start.run_id)
    if date := manifest.get("date"):
        start.date = datetime.fromisoformat(date)
    return start


def _on_one_line(change: str) -> str:
    text = " ".join(change.split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."


def run_to_continue(resume: str | None, plain: Plain) -> Path | None:
    """Returns the run folder that `resume` means; None if there is none and the configured folder is to be
    made. Raises ConfigError: `resume` names something that is not a run.
    """
    wanted = run_folder(plain)
    if resume is None:
        return None
    is_default = has_default_folder(plain)
    if resume != AUTO:
        folder = _run_of(Path(str(resume)))
        if not is_default and wanted.absolute() != folder.absolute():
            problem = f"run_folder={wanted} and resume={resume} name two runs; leave run_folder out"
            raise ConfigError([problem])
        return folder
    if wanted.exists():
        return wanted
    if not is_default:
        print(f"resume=auto: {wanted} does not exist yet; a new run begins")
        return wanted
    newest = newest_unfinished(wanted.parent, plain)
    if newest is None:
        others = f" (unfinished there: {', '.join(names)})" if (names := unfinished(wanted.parent)) else ""
        print(
            f"resume=auto: {wanted.parent} holds no unfinished run {folder_prefix(plain)}* of this "
            f"configuration{others}; a new run begins"
        )
    return newest


def newest_unfinished(parent: Path, plain: Plain) -> Path | None:
    """Returns the newest unfinished run below `parent` with this configuration. Raises ConfigError: a run has
    checkpoints, but no record of its configuration.
    """
    for folder in sorted(parent.glob(f"{folder_prefix(plain)}*"), reverse=True):
        if not is_timed_folder(folder, plain):
            continue
        if has_lost_config(folder):
            raise _lost_config(folder)
        try:
            stored = read_config(folder)
            moved = {**plain, "run_folder": str(folder)}
            if not is_finished(folder, stored, plain) and not changes(stored, moved)[1]:
                return folder
        except DataError:  # killed before it was a run
            continue
    return None


def has_lost_config(folder: Path) -> bool:
    """Whether there are checkpoints but the configuration is missing, or empty as after a power failure."""
    path = folder / "config.yaml"
    is_lost = not path.exists() or not path.stat().st_size
    return is_lost and bool(list_checkpoints(folder / "checkpoints"))


def _lost_config(folder: Path) -> ConfigError:
    return ConfigError([
        f"{folder} has checkpoints, but its config.yaml is empty or gone, so it is unknown whether it is "
        f"this run; write resume={folder} to continue it with this configuration, or move it away"
    ])  # fmt: skip


def is_finished(folder: Path, stored: Plain, plain: Plain) -> bool:
    """Whether a run has nothing left to do: it reached its end and the configuration does not make it longer,
    or a callback stopped it and the configuration is the same.
    """
    status = read_manifest(folder).get("status")
    if status == STOPPED_EARLY:  # by a callback whose state would stop it again
        return not any(changes(stored, plain))
    return status == "finished" and not makes_longer(stored, plain)


def _why_done(manifest: Plain) -> str:
    if manifest.get("status") != STOPPED_EARLY:
        return "is finished: nothing to do (a larger scale.num_rollout_batches makes it longer)"
    name = manifest.get("stopped_by", "a callback")
    remedy = "a larger trainer.max_time" if name == "Timer" else f"a configuration without {name}"
    return f"was stopped by {name}: nothing to do ({remedy} continues it)"


def choose_checkpoint(folder: Path, resume: str) -> tuple[Checkpoint | None, list[Path]]:
    """Returns the newest good checkpoint, or the one that `resume` names, and all newer checkpoints. Raises
    CheckpointError: none is good, or `resume` is not `auto` and there is none.
    """
    checkpoints = list_checkpoints(folder / "checkpoints")
    if not checkpoints:
        if resume != AUTO:
            raise CheckpointError(
                f"resume={resume}: {folder} has no checkpoint yet; write resume=auto to start it again"
            )
        return None, []
    named = [path for path in checkpoints if path.absolute() == Path(resume).absolute()]
    chosen, reasons = first_good(named or checkpoints, lambda path: _verified(path, folder, bool(named)))
    if chosen is None:
        raise CheckpointError(
            f"resume={resume}: no checkpoint is good ({reasons}); leave resume out to begin a new run"
        )
    return chosen, checkpoints[: checkpoints.index(chosen.path)]


def first_good(
    folders: Sequence[Path], check: Callable[[Path], Checkpoint] = verify
) -> tuple[Checkpoint | None, str]:
    """Returns the first checkpoint that passes the check, and the faults of earlier ones, which it prints."""
    reasons: list[str] = []
    for folder in folders:
        try:
            return check(folder), "; ".join(reasons)
        except CheckpointError as error:
            print(f"not used: {error}")
            reasons.append(str(error))
    return None, "; ".join(reasons)


def refuse_foreign_files(folder: Path, lack: str) -> None:
    """Raises ConfigError for files in a folder without configuration, unless a killed start left them."""
    if {path.name for path in folder.iterdir()} - {".lock", ".config.yaml.partial"}:
        raise ConfigError([f"run_folder={folder} holds files, but {lack}; write another run_folder"])


def make_run_folder(folder: Path) -> None:
    """Creates a run folder. Raises ConfigError if it cannot be made or already exists."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError([
            f"run_folder={folder} exists already, and nothing in it may be lost; write resume=auto to "
            "continue it, or another run_folder"
        ]) from None  # fmt: skip
    except OSError as error:
        reason = f"run_folder={folder} cannot be made ({error.strerror})"
        raise ConfigError([f"{reason}; write another output_root"]) from None


def write_config(folder: Path, plain: Plain) -> None:
    """Writes the resolved configuration, so that a reader sees either the old or the whole new one."""
    write_text(folder / "config.yaml", yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def _verified(path: Path, folder: Path, is_named: bool) -> Checkpoint:
    """Returns a checkpoint of this run with whole weights. Records of the run may have changed since only if
    it `is_named`; the record of the order may always, as no run learns from it. Raises CheckpointError.
    """
    checkpoint = verify(path)
    if read_manifest(folder).get("id") not in (None, checkpoint.run):  # None: the manifest is lost
        raise CheckpointError(f"{path} was written by another run: move it back to where it came from")
    for name, journal in checkpoint.journals.items():
        if JournalDigest(folder / name).read_on(journal["bytes"]) == journal:
            continue
        text = f"{folder / name} differs from what it was when {path} was written: rows have changed"
        if Journal(folder / name).size < journal["bytes"]:
            text = f"{folder / name} is shorter than when {path} was written: rows are missing"
        if name == SCHEDULE_FILE:
            text += ", so that no run can follow the order of this one"
        elif not is_named:
            raise CheckpointError(f"{text}; to use it anyway write resume={path}")
        print(f"used anyway: {text}")
    return checkpoint


def _run_of(path: Path) -> Path:
    for folder in (path, path.parent.parent):
        if path.is_dir() and ((folder / "config.yaml").is_file() or has_lost_config(folder)):
            return folder
    raise ConfigError([
        f"resume={path} is neither a run folder nor one of its checkpoints; write resume=auto, "
        "resume=outputs/<experiment>/<run>, or resume=outputs/<experiment>/<run>/checkpoints/update<number>"
    ])  # fmt: skip
