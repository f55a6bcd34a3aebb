"""Composes a configuration into plain values, or explains in a sentence why Hydra cannot. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bapo_lightning.configuration.conf_dir import choice_files, conf_dir, installed_folders
from bapo_lightning.configuration.group_names import refuse_no_names
from bapo_lightning.configuration.hydra_versions import BASE
from bapo_lightning.configuration.thirty_keys import meant_by
from bapo_lightning.system.errors import ConfigError, FirstConfigError, nearest, suggestion
from bapo_lightning.system.ranks.launch import leads


def compose_run(overrides: Sequence[str]) -> dict[str, Any]:
    """Composes `conf/train.yaml` into plain values, also inside a command of Hydra. Raises ConfigError."""
    return resolve(composed_run(overrides))


def composed_run(overrides: Sequence[str], with_hydra: bool = False) -> DictConfig:
    """`compose_run` before values are resolved; `with_hydra` adds Hydra's node, which has the choices."""
    installed_folders()  # Hydra would wrap its error in its own
    refuse_no_names(overrides)
    current = GlobalHydra.instance()
    of_command = current.hydra  # also knows the folder of --config-dir
    try:
        with nullcontext() if of_command else initialize_config_dir(conf_dir(), **BASE):
            return compose("train", list(overrides), return_hydra_config=with_hydra)
    except (HydraException, OmegaConfBaseException) as error:
        raise FirstConfigError([explained(error, overrides)]) from None
    finally:
        current.hydra = of_command


def explained(error: Exception, overrides: Sequence[str], file: str = "train") -> str:
    """A sentence about the error that prevents `conf/<file>.yaml` with `overrides` from being composed."""

    def without(key: str) -> dict[str, Any]:
        rest = [text for text in overrides if text.lstrip("+~").partition("=")[0] != key]
        for tried in (rest, []):  # the others may be wrong as well
            GlobalHydra.instance().clear()
            with suppress(HydraException, OmegaConfBaseException), initialize_config_dir(conf_dir(), **BASE):
                composed = compose(file, tried, return_hydra_config=key.startswith("hydra."))
                return cast(dict[str, Any], OmegaConf.to_container(composed, resolve=False))
        return {}

    return composition_problem(error, without)


def resolve(config: DictConfig) -> dict[str, Any]:
    """Plain values of a composed configuration. Raises ConfigError for a key that has none."""
    try:
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        key, reason = error.full_key, str(error.msg).partition("\n")[0]
        raise ConfigError([f"{key} cannot be resolved ({reason}); write {key}=VALUE"]) from None


_TIME = re.compile(r"\d{8}-\d{6}(-\d+)?")  # the last part is the number of a job of Hydra's multirun


def requested_ranks(plain: dict[str, Any]) -> tuple[Any, Any]:
    """(devices, nodes) as they stand in the configuration: ranks are started before it is validated."""
    trainer = plain["trainer"]
    return trainer["devices"], trainer["num_nodes"]


def wants_display(plain: dict[str, Any]) -> bool:
    """Whether this process shows the progress: rank 0 does, unless the progress bar is switched off."""
    return leads() and plain["trainer"].get("enable_progress_bar") is not False


def run_folder(plain: dict[str, Any]) -> Path:
    """The configured run folder."""
    return Path(plain["run_folder"])


def folder_prefix(plain: dict[str, Any]) -> str:
    """Prefix of this configuration's run folders, before the time of their start."""
    return f"{plain['algorithm']['name']}-{plain['regime']['name']}-s{plain['seed']}-"


def is_timed_folder(folder: Path, plain: dict[str, Any]) -> bool:
    """Whether the folder has a name that a run of this configuration gives itself when it starts."""
    prefix = folder_prefix(plain)
    return folder.name.startswith(prefix) and bool(_TIME.fullmatch(folder.name.removeprefix(prefix)))


def has_default_folder(plain: dict[str, Any]) -> bool:
    """Whether `run_folder` was left to default to the time of the start."""
    folder = run_folder(plain)
    return folder.parent == Path(plain["output_root"], plain["name"]) and is_timed_folder(folder, plain)


TABLE = ("data.train.path", "problem_set@data.train")  # how people try to choose their own data
OWN_TABLE = "your own table is data=table data.train.path="
PLUGINS = 'Hydra\'s launchers come with .venv/bin/python -m pip install -e ".[sweep]"'
SHARED = ("base",)  # files that others build on and that are not choices themselves
_KEY = re.compile(r"Could not (?:override|delete from config\.) '([^']+)'")
_AMBIGUOUS = re.compile(r"Ambiguous value for argument '(.+)'")
_TAKEN = re.compile(r"An item is already at '([^']+)'")
_MEANT = re.compile(r"Did you mean to override (.*?)\?")

# A comma between two overrides, or after the last.
_NEXT = re.compile(r",\s*(?=[+~]?[A-Za-z][\w./@]*=)|,\s*$")

Node = Mapping[str, Any]


def unreadable(override: str) -> str:
    """A sentence about an override that Hydra's grammar cannot parse: the probable meaning, in valid form.

    >>> unreadable("--seed=3")
    '--seed=3 cannot be read; write seed=3'
    """
    key, has_value, value = override.partition("=")
    if override.startswith("-") and (option := override.lstrip("-")):
        remedy = f"write {option if has_value else f'{option}=VALUE'}"
    elif not has_value and (pair := re.fullmatch(r"([+~]?[\w./@]+):\s*(.+)", override)):
        remedy = f"write {pair[1]}={pair[2]}"
    elif not has_value:
        remedy = f"write {key}=VALUE, without spaces around the ="
    elif _NEXT.search(value):
        remedy = f"write spaces between overrides: {_NEXT.sub(' ', override).strip()}"
    else:
        remedy = f"""put the value in quotes: '{key}="{value}"'"""
    return f"{override} cannot be read; {remedy}"


def composition_problem(error: Exception, known: Callable[[str], Node]) -> str:
    """A sentence about Hydra's or OmegaConf's error; `known` composes without the overrides of a key."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        return unreadable(error.override)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        while (group and not choice_files(group)) or ".." in group or group.endswith("/"):
            # `algorithm=a/b`, a path instead of a name
            group, _, last = group.rpartition("/")
            name = f"{last}/{name}"
        known_names = _choices(group)
        if group == "hydra/launcher":
            listed = f"{suggestion(name, known_names)}; " if known_names else ""
            return f"{group}={name} is not a choice here; {listed}{PLUGINS}"
        if group == "data" and Path(name).exists():
            return f"{group}={name} is not a choice; {OWN_TABLE}{name}"
        return f"{group}={name} is not a choice; {suggestion(name, known_names)}"
    if match := _TAKEN.search(text):
        return f"{match[1]} is already an option; leave out the + before it"
    if match := _AMBIGUOUS.search(text):
        key, _, values = match[1].partition("=")
        return (
            f"{match[1]} names several values; for a run of each write -m {match[1]} (on the command line), "
            f"for a list {key}=[{values}]"
        )
    if match := _KEY.search(text):
        # The cause knows which child of a mapping was meant.
        child = getattr(error.__cause__, "full_key", None) or ""
        key = child if child.startswith(f"{match[1]}.") else match[1]
        if key in TABLE:
            return f"{key} is not chosen here; {OWN_TABLE}FILE"
        if "@" in key or "/" in key:
            meant = _MEANT.search(text)
            return f"{key} is not chosen here{f'; did you mean {meant[1]}?' if meant else ''}"
        if key in dotted_keys(known(key)):  # Hydra deletes keys that have a value
            return f"~{key}: it is already null; leave this out"
        return f"{key} is not an option; {meant_key(key, known(key))}"
    return text.partition("\n")[0]


def meant_key(key: str, known: Node) -> str:
    """The end of a sentence about an unknown `key`: the key that is meant, or the keys that its node has."""
    parts = key.split(".")
    if common := meant_by(key):
        return f"did you mean {common.key} ({common.what})?"
    depth = next(n for n in range(len(parts) - 1, -1, -1) if isinstance(node_at(known, parts[:n]), Mapping))
    place, siblings = ".".join(parts[:depth]), node_at(known, parts[:depth])
    if parts[depth] in siblings:
        return _childless(parts[: depth + 1], siblings[parts[depth]])
    if near := nearest(parts[depth], siblings):
        whole = [*parts[:depth], near[0], *parts[depth + 1 :]]
        is_one = ".".join(whole) in dotted_keys(known)  # even if it is null
        return f"did you mean {'.'.join(whole if is_one else whole[: depth + 1])}?"
    if parts[0] != "hydra" and (common := meant_by(parts[-1])):
        return f"did you mean {common.key} ({common.what})?"
    keys = [
        each
        for each in dotted_keys(known)
        if (depth == 0 or each.startswith(f"{parts[0]}.")) and not key.startswith(f"{each}.")
    ]
    same = [each for each in keys if each.rpartition(".")[2] == parts[-1]]
    # If the node is right, its children say more than a similar key.
    alike = nearest(key, keys) if 0 < depth < len(parts) - 1 else []
    if meant := same[:3] or alike:
        return f"did you mean {' or '.join(meant)}?"
    if not siblings:
        return f"{place} is empty; write +{key}=VALUE to add it"
    takes = f"{place or 'the configuration'} takes {', '.join(siblings)}"
    if "_target_" in siblings:
        return f"{takes}; write +{key} for another option of {siblings['_target_']}"
    return takes


def _childless(parts: Sequence[str], value: Any) -> str:
    place, group = ".".join(parts), "/".join(parts)
    if not (choices := _choices(group)):
        shown = "null" if value is None else value
        return f"{place} is one value ({shown}), without options; write {place}=VALUE"
    options = OmegaConf.load(choice_files(group)[choices[0]])
    listed = ", ".join(map(str, options if isinstance(options, DictConfig) else ()))
    return f"{place} is null; write {group}={choices[0]} as well, which takes {listed}"


def _choices(group: str) -> list[str]:
    return sorted(name for name in choice_files(group) if name not in SHARED)


def dotted_keys(node: Node, prefix: str = "") -> Iterator[str]:
    """Yields the keys of a configuration and of its nodes, with dots."""
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from dotted_keys(value, f"{prefix}{key}.")


def node_at(known: Node, parts: Sequence[str]) -> Any:
    """The node at the parts of a dotted key; None if there is none."""
    node: Any = known
    for part in parts:
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


# Texts that Hydra reads as strings without quotes.
_PLAIN = re.compile(r"[A-Za-z_./-][A-Za-z0-9_./-]*|\d+-[a-z]+|\$\{[\w.:]+\}")
_OTHER_TYPES = {"null", "true", "false", "nan", "inf", "-inf"}


def hydra_value(value: Any) -> str:
    """Writes a value of YAML in Hydra's grammar, which treats commas, quotes and `null` differently."""
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(hydra_value, value)) + "]"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _OTHER_TYPES:
        return text
    return QuotedString(text, Quote.double).with_quotes()


def hydra_overrides(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes an override for each key."""
    return tuple(f"{key}={hydra_value(value)}" for key, value in values.items())
