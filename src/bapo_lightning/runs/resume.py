"""`resume=`: which run goes on, from which of its checkpoints, and what is cut off before. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from bapo_lightning.errors import CheckpointError, ConfigError, DataError
from bapo_lightning.run_folder.checkpoint import (
    JOURNALS,
    Checkpoint,
    list_checkpoints,
    remove_leftovers,
    set_aside,
    verify,
)
from bapo_lightning.run_folder.config_keys import Role, changes, makes_longer, role_of
from bapo_lightning.run_folder.find import unfinished
from bapo_lightning.run_folder.journal import Journal, JournalDigest
from bapo_lightning.run_folder.lock import RunLock
from bapo_lightning.run_folder.record import read_config, read_manifest
from bapo_lightning.run_folder.text_file import write_text

if TYPE_CHECKING:
    from bapo_lightning.configuration.run_config import RunConfig

Plain = dict[str, Any]
AUTO = "auto"
_MOST_CHANGES = 8  # refused ones that are listed
_MOST_CHARACTERS = 160  # of one of them


@dataclass
class RunStart:
    """How a session begins: a new run, or one that goes on."""

    folder: Path
    is_new: bool = True
    checkpoint: Checkpoint | None = None  # None of a run that goes on: killed before its first one
    changed: Sequence[str] = ()  # configuration keys that differ from the session before
    outdated: Sequence[Path] = ()  # checkpoints that are corrupt, or newer than the one chosen
    lock: RunLock | None = field(default=None, repr=False)
    run_id: str = field(default_factory=lambda: uuid4().hex)

    @property
    def resume_entry(self) -> dict[str, Any] | None:
        """Manifest entry of this session; None for a new run."""
        if self.is_new:
            return None
        return {"update": self.checkpoint.update if self.checkpoint else 0, "changed": list(self.changed)}

    def prepare(self, plain: Plain, account: Plain | None = None) -> None:
        """Makes the folder of a new run, or cuts an earlier one back; may be killed and done again. Raises
        ConfigError: the folder of a new run cannot be made or is taken; DataError: of a run that goes on,
        the held-out problems are others, by their `account`.
        """
        if self.is_new:
            if self.lock is None:
                make_run_folder(self.folder)
                self.lock = RunLock(self.folder)
        else:
            self._refuse_other_held_out(account or {})
            remove_leftovers(self.folder / "checkpoints")
            for folder in self.outdated:
                print(f"moved aside: {set_aside(folder)}")
            for name in JOURNALS:
                journal = self.checkpoint.journals.get(name) if self.checkpoint else None
                Journal(self.folder / name).cut(journal["bytes"] if journal else 0)
        write_config(self.folder, plain)

    def _refuse_other_held_out(self, account: Plain) -> None:
        asked_for = any(role_of(change.partition(":")[0]) is Role.VALIDATION for change in self.changed)
        if self.checkpoint is None or asked_for:
            return
        before = (read_manifest(self.folder).get("problems") or {}).get("validation", {})
        for name, part in account.get("validation", {}).items():
            if before.get(name, {}).get("digest", part["digest"]) != part["digest"]:
                raise DataError(
                    f"data.validation.{name}: the {part['kept']} held-out problems are not those of "
                    f"{self.folder}, so that its curve would change its meaning: their file has changed; put "
                    "it back, or begin a new run"
                )

    def __getstate__(self) -> dict[str, Any]:
        """Without the lock, which rank 0 alone holds."""
        return {**self.__dict__, "lock": None}

    def release(self) -> None:
        """Let other processes in."""
        if self.lock is not None:
            self.lock.release()


def open_run(config: RunConfig) -> RunStart | None:
    """How a run begins, in the folder that `run_to_continue` found; None when finished. Changes nothing yet.

    Raises:
        ConfigError: the configuration is not the one that the run began with.
        CheckpointError: another process is in the run folder, or no checkpoint is good.
    """
    folder = config.folder
    if config.resume is None or not folder.exists():
        return RunStart(folder)
    lock = RunLock(folder)
    if has_lost_config(folder):
        if config.resume == AUTO:
            raise _lost_config(folder)
        print(f"{folder} has lost its config.yaml: it goes on with the configuration that was given")
        stored = config.plain
    elif not (folder / "config.yaml").exists():
        refuse_foreign_files(folder, "no run to resume")
        print(f"resume={config.resume}: {folder} is empty; a new run begins")
        return RunStart(folder, lock=lock)
    else:
        stored = read_config(folder)
    allowed, refused = changes(stored, config.plain)
    if refused:
        stay = f"to go on with this run write the values of {folder / 'config.yaml'}"
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
        print(f"{folder} is finished: nothing to do (a larger scale.num_rollout_batches makes it longer)")
        return None
    for change in allowed:
        print(f"changed since the session before: {change}")
    checkpoint, outdated = choose_checkpoint(folder, config.resume)
    if checkpoint is None:
        print(f"{folder} has no checkpoint yet: it begins again")
    start = RunStart(folder, False, checkpoint, allowed, outdated, lock)
    start.run_id = run_id_of(folder) or (checkpoint.run if checkpoint else start.run_id)
    return start


def _on_one_line(change: str) -> str:
    text = " ".join(change.split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."


def run_to_continue(resume: str | None, plain: Plain) -> Path | None:
    """The run folder that `resume` means; None when there is none and the configured one is to be made.
    Raises ConfigError: `resume` names something that is no run.
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
    found = newest_unfinished(wanted.parent, plain)
    if found is None:
        others = f" (unfinished there: {', '.join(names)})" if (names := unfinished(wanted.parent)) else ""
        print(
            f"resume=auto: {wanted.parent} holds no unfinished run {folder_prefix(plain)}* of this "
            f"configuration{others}; a new run begins"
        )
    return found


def newest_unfinished(parent: Path, plain: Plain) -> Path | None:
    """The newest run below `parent` that has this configuration and has not reached its end. Raises
    ConfigError: one has checkpoints, and nothing says what it trains.
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
    """Whether checkpoints lie next to a configuration that is empty, as after a power failure, or gone."""
    path = folder / "config.yaml"
    is_lost = not path.exists() or not path.stat().st_size
    return is_lost and bool(list_checkpoints(folder / "checkpoints"))


def _lost_config(folder: Path) -> ConfigError:
    return ConfigError([
        f"{folder} has checkpoints, but its config.yaml is empty or gone, so that nothing says whether it is "
        f"this run; write resume={folder} to go on with it under this configuration, or move it away"
    ])  # fmt: skip


def is_finished(folder: Path, stored: Plain, plain: Plain) -> bool:
    """Whether a run reached its end, and the configuration does not make it longer."""
    return read_manifest(folder).get("status") == "finished" and not makes_longer(stored, plain)


def choose_checkpoint(folder: Path, resume: str) -> tuple[Checkpoint | None, list[Path]]:
    """The newest good checkpoint, or the one that `resume` names, and all that are newer. Raises
    CheckpointError: none is good, or with other than `auto` there is none at all.
    """
    found = list_checkpoints(folder / "checkpoints")
    if not found:
        if resume != AUTO:
            raise CheckpointError(
                f"resume={resume}: {folder} has no checkpoint yet; write resume=auto to let it begin again"
            )
        return None, []
    named = [path for path in found if path.absolute() == Path(resume).absolute()]
    chosen, reasons = first_good(named or found, lambda path: _verified(path, folder, bool(named)))
    if chosen is None:
        raise CheckpointError(
            f"resume={resume}: no checkpoint is good ({reasons}); name one as resume=FOLDER/checkpoints/NAME "
            "to use it in spite of changed records, or leave resume out to begin a new run"
        )
    return chosen, found[: found.index(chosen.path)]


def first_good(
    folders: Sequence[Path], check: Callable[[Path], Checkpoint] = verify
) -> tuple[Checkpoint | None, str]:
    """The first checkpoint that passes the check, and why those before it do not; prints the latter."""
    reasons: list[str] = []
    for folder in folders:
        try:
            return check(folder), "; ".join(reasons)
        except CheckpointError as error:
            print(f"not used: {error}")
            reasons.append(str(error))
    return None, "; ".join(reasons)


def refuse_foreign_files(folder: Path, lack: str) -> None:
    """Raises ConfigError for files in a folder without a configuration, unless a killed start left them."""
    if {path.name for path in folder.iterdir()} - {".lock", ".config.yaml.partial"}:
        raise ConfigError([f"run_folder={folder} holds files, but {lack}; write another run_folder"])


def make_run_folder(folder: Path) -> None:
    """Create a run folder. Raises ConfigError when it cannot be made or is taken."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError([
            f"run_folder={folder} exists already, and nothing in it may be lost; write resume=auto to go on "
            "with it, or another run_folder"
        ]) from None  # fmt: skip
    except OSError as error:
        reason = f"run_folder={folder} cannot be made ({error.strerror})"
        raise ConfigError([f"{reason}; write another output_root"]) from None


def write_config(folder: Path, plain: Plain) -> None:
    """Write the resolved configuration, so that a reader sees the old one or the whole new one."""
    write_text(folder / "config.yaml", yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def run_id_of(folder: Path) -> str | None:
    """Id of a run; None if its manifest is lost."""
    return read_manifest(folder).get("id")


def _verified(path: Path, folder: Path, is_named: bool) -> Checkpoint:
    """A checkpoint of this run; one that `is_named` may have changed records."""
    checkpoint = verify(path)
    if run_id_of(folder) not in (None, checkpoint.run):
        raise CheckpointError(f"{path} was written by another run: move it back to where it came from")
    for name, journal in checkpoint.journals.items():
        if Journal(folder / name).size < journal["bytes"]:
            text = f"{folder / name} is shorter than when {path} was written: rows are missing"
            raise CheckpointError(text)
        if JournalDigest(folder / name).read_on(journal["bytes"]) != journal:
            text = f"{folder / name} differs from what it was when {path} was written: rows have changed"
            if not is_named:
                raise CheckpointError(text)
            print(f"used all the same: {text}")
    return checkpoint


def _run_of(path: Path) -> Path:
    for folder in (path, path.parent.parent):
        if path.is_dir() and ((folder / "config.yaml").is_file() or has_lost_config(folder)):
            return folder
    raise ConfigError([
        f"resume={path} is neither a run folder nor one of its checkpoints; write resume=auto, "
        "resume=outputs/<experiment>/<run>, or resume=outputs/<experiment>/<run>/checkpoints/update<number>"
    ])  # fmt: skip
