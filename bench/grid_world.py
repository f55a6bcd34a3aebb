"""OpenEnv's grid world with room for many sessions, for `bench/doors.py`; as it ships, it takes one."""

from __future__ import annotations

from typing import Any


def app() -> Any:
    """Returns the server's application, for `uvicorn --factory`."""
    from grid_world_env.models import GridWorldAction, GridWorldObservation
    from grid_world_env.server.grid_world_environment import GridWorldEnvironment
    from openenv.core.env_server.http_server import create_app

    class Grid(GridWorldEnvironment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

    return create_app(
        Grid, GridWorldAction, GridWorldObservation, env_name="grid_world", max_concurrent_envs=1024
    )
