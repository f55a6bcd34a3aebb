"""Both sides of the comparison get the same job."""

import sys
from pathlib import Path

import against_trl
import pytest
from against_trl import JOBS, show, trl_job

from bapo_lightning.configuration.compose import compose_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Our configuration, and TRL's job."""
    folder = tmp_path_factory.mktemp("run")
    config = compose_run([*against_trl.our_overrides(JOBS["tiny"], "hf", 1), f"run_folder={folder}"])
    return config, trl_job(JOBS["tiny"], config, 1, {"torch_compile": True}, folder)


def test_trls_job_has_the_sizes_of_our_configuration(run):
    config, job = run
    for key in ("prompts_per_batch", "group_size", "max_new_tokens"):
        assert job[key] == config["scale"][key]
    regime = config["regime"]
    assert (job["epochs"], job["minibatches"]) == (regime["epochs"], regime["minibatches"]) == (2, 4)
    assert job["learning_rate"] == config["optimizer"]["optimizer"]["lr"] == 1e-7
    assert (job["reward"], job["threads"], job["options"]) == ("final_value", 1, {"torch_compile": True})
    assert config["algorithm"]["name"] == "grpo" and config["rollout"]["temperature"] == 1.0


def test_prompts_are_given_as_text_and_as_the_ids_that_both_must_make_of_it(run):
    first = run[1]["problems"][0]
    assert len(first["ids"]) == len(first["prompt"]) == 6 and first["prompt"].endswith("=")
    assert sum(map(int, first["prompt"][:-1].split("+"))) == int(first["answer"])


def test_without_trl_the_command_that_gets_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(against_trl, "TRL_PYTHON", Path(tmp_path, "absent"))
    monkeypatch.setattr(sys, "argv", ["against_trl.py", "tiny"])
    with pytest.raises(SystemExit, match="make setup-trl"):
        against_trl.main()


def test_the_table_has_the_ratio_of_neighbouring_cycles(capsys):
    def cycle(wall):
        shares = {"cpu": wall, "rollout": wall / 2, "update": wall / 8}
        return {"wall": wall, **shares, "tokens": 100.0, "samples": 4}

    slower = [cycle(5.0), cycle(7.0)]
    trl = {"TRL, float32": slower, "TRL, mixed": [cycle(4.0), cycle(6.0)]}
    record = show(trl | {"ours, hf": [cycle(2.0), cycle(2.0)]})
    assert record["ours, hf"]["times_faster"]["wall"].median == 2.5
    shown = capsys.readouterr().out
    assert "ours, hf: responses of 25.0 tokens on average" in shown
    assert "2.50 (2.00 .. 3.00) times as fast as TRL, mixed" in shown
