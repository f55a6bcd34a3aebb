import sys

import pytest
from tests.extras.openenv.guessing import secret

from bapo_lightning.extras.openenv.actions import TextAction
from bapo_lightning.extras.openenv.problems import openenv_problems
from bapo_lightning.extras.openenv.server import WorldServer
from bapo_lightning.extras.openenv.world import OpenEnv


class Worlds:
    """Servers of the guessing world with one log, and what is made with them."""

    def __init__(self, folder):
        self.log, self.closing = folder / "messages", []

    def server(self, *more, **options):
        command = [sys.executable, "-m", "tests.extras.openenv.guessing", "{port}", str(self.log), *more]
        server = WorldServer(command=command, **{"seconds": 20, **options})
        self.closing.append(server)
        return server

    def environment(self, server=None, action=None, **options):
        made = OpenEnv(server or self.server(), action or TextAction(), **{"seconds": 20, **options})
        self.closing.append(made)
        return made

    def problems(self, count=1, split="train", **options):
        return openenv_problems(self.server(), "guessing", count, split, **options)

    def messages(self):
        """What was asked since the last time, without the names of sessions."""
        lines = [line.split(" ", 1)[1] for line in self.log.read_text().splitlines()]
        self.log.write_text("")
        return lines


@pytest.fixture
def worlds(tmp_path):
    made = Worlds(tmp_path)
    yield made
    for each in made.closing:
        each.close()


@pytest.fixture
def answer():
    return lambda problem: str(secret(problem.metadata["reset"]["seed"]))
