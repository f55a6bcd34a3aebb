"""What a run says before anything is built."""

import pytest
from tests.configuration.compositions import composed

from bapo_lightning.runs import train as module
from bapo_lightning.runs.train import train
from bapo_lightning.system.errors import MachineError
from bapo_lightning.system.ranks.rank_group import ALONE


@pytest.fixture
def begun(monkeypatch):
    """Names of what was begun after the machine was checked: nothing of it is done."""
    done = []
    monkeypatch.setattr(module, "join", lambda *_, **__: done.append("ranks") or ALONE)
    monkeypatch.setattr(module, "run", lambda *_: done.append("run") or 0)
    return done


@pytest.mark.parametrize(("rank", "said"), [("0", "GPUs: 1\nmemory: it fits\n"), ("1", "")])
def test_the_first_rank_says_what_the_run_needs_and_finds(rank, said, begun, monkeypatch, capsys):
    monkeypatch.setattr(module, "check_machine", lambda config: ["GPUs: 1", "memory: it fits"])
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    train(composed(), composed)
    assert capsys.readouterr().out == said
    assert begun == ["ranks", "run"]


def test_a_machine_that_cannot_run_it_is_reported_before_the_ranks_meet(begun, monkeypatch):
    def refuse(config):
        raise MachineError(config.name, ["GPUs: 8 needed"], [])

    monkeypatch.setattr(module, "check_machine", refuse)
    with pytest.raises(MachineError):
        train(composed(), composed)
    assert begun == []
