"""Location of the configuration files, and functions in them such as `${max:8,${regime.minibatches}}`.

conf/ of this package  +  folders of installed packages (entry points `bapo_lightning.conf`)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

from bapo_lightning.configuration.hydra_versions import register_resolver
from bapo_lightning.system.errors import ConfigError

GROUP = "bapo_lightning.conf"  # of entry points: NAME = "package whose folder has algorithm/NAME.yaml"
OWN = "bapo-lightning"


def conf_dir() -> str:
    """Absolute path of `conf/`, in an installed package or at the top of a checkout. Raises ConfigError."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parents[1] / "conf"):
        if (folder / "train.yaml").is_file():
            return str(folder)
    places = f"neither in {package} nor in {package.parents[1]}"
    raise ConfigError([f"conf/train.yaml is {places}: install the package again"])


def choice_files(group: str) -> dict[str, Path]:
    """Files of a group by name, of `conf/` and of installed packages. Raises ConfigError for the latter."""
    folders = (Path(conf_dir()), *installed_folders())
    return {file.stem: file for folder in folders for file in sorted(Path(folder, group).glob("*.yaml"))}


def installed_folders() -> tuple[Path, ...]:
    """Folders that installed packages add to the search path. Raises ConfigError if an entry point leads to
    no folder, or two packages have the same file.
    """
    return _installed_folders(tuple(sys.path))


@lru_cache(maxsize=8)
def _installed_folders(path: Sequence[str]) -> tuple[Path, ...]:
    by_package: dict[str, list[Path]] = {}
    for point in entry_points(group=GROUP):
        by_package.setdefault(point.dist.name if point.dist else point.name, []).extend(_folders_of(point))
    _refuse_clashes({OWN: [Path(conf_dir())], **by_package})
    return tuple(folder for folders in by_package.values() for folder in folders)


def _folders_of(point: EntryPoint) -> list[Path]:
    owner = point.dist.name if point.dist else point.name
    entry = f"{owner}: its entry point {point.name} = {point.value!r} of {GROUP}"
    try:
        spec = find_spec(point.value)
    except Exception as error:  # importing the parent package may raise anything
        raise ConfigError([f"{entry} cannot be imported ({error}); uninstall {owner} or fix it"]) from None
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or []]
    if not any(folder.glob("*/*.yaml") for folder in folders):
        raise ConfigError([f"{entry} is not a package with files such as algorithm/NAME.yaml"])
    return folders


def _refuse_clashes(owners: Mapping[str, Sequence[Path]]) -> None:
    files = {
        owner: {file.relative_to(folder).as_posix() for folder in folders for file in folder.rglob("*.yaml")}
        for owner, folders in owners.items()
    }
    for (one, its), (other, others) in combinations(files.items(), 2):
        if both := sorted(its & others):
            raise ConfigError([f"{both[0]} is in {one} and in {other}; rename one, or uninstall {other}"])


def _sum(*values: object) -> int:
    """Sum without values that are not known yet, or wrong and reported by their own rule."""
    return sum(value for value in values if isinstance(value, int))


register_resolver("max", max)
register_resolver("sum", _sum)
register_resolver("installed_conf", lambda: [folder.as_uri() for folder in installed_folders()])
