"""An environment of verifiers for `bench/doors.py`: its GymEnv over gymnasium's FrozenLake, without slipping.

The reward is 1 for the gift, and 0 where the ice breaks or 20 steps are over.
"""

from __future__ import annotations

from typing import Any

MOVES = ("LEFT", "DOWN", "RIGHT", "UP")


def load_environment(**options: Any) -> Any:
    import gymnasium
    from verifiers.legacy.envs.experimental.gym_env import GymEnv

    class Lake:
        def __init__(self) -> None:
            self._lake = gymnasium.make("FrozenLake-v1", is_slippery=False)

        def reset(self, seed: int) -> Any:
            return self._lake.reset(seed=seed)

        def step(self, action: int) -> Any:
            return self._lake.step(action)

    return GymEnv(
        env_cls=Lake,
        action_parser=lambda text: MOVES.index(next(move for move in MOVES if move in text)),
        num_train_episodes=64,
        num_eval_episodes=8,
        max_episode_steps=20,
        **options,
    )
