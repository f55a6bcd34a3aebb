"""Everything that runs on a Ray cluster: fleets of engines, ranks, runs of a sweep, verdicts.

    rollout=ray       engine.RayEngine          -> fleet, members, actor, weights
    ranks=ray         ranks.RanksOnRay          -> nodes
    launcher=ray      launcher.RayLauncher
    reward=math_ray   verdicts.VerdictsOnNodes

These four can be imported without Ray.
"""

from __future__ import annotations

from importlib import import_module

from bapo_lightning.system.errors import ConfigError


def require_ray(key: str, instead: str) -> None:
    """Raises ConfigError unless Ray is installed, naming `key` that needs it; `instead` works without Ray."""
    try:
        import_module("ray")
    except ImportError as error:
        remedy = '.venv/bin/python -m pip install -e ".[ray]"'
        raise ConfigError(
            [f"{key} needs Ray ({error}); `{remedy}` installs it, or write {instead}"]
        ) from error
