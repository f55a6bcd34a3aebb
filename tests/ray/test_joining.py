"""What is found out before any engine starts."""

import signal
import sys

import pytest
from tests.commands import run_command

from bapo_lightning.errors import ConfigError, EngineError
from bapo_lightning.ray.engine import RayEngine
from bapo_lightning.ray.joining import join, sigterm_kept
from bapo_lightning.ray.versions import code_digest, differences, versions
from bapo_lightning.rollout.hf.engine import HFEngine


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", "Connection refused"), ("node7", "no HOST:PORT"), ("ray://node7", "no HOST:PORT")],
)
def test_a_cluster_that_is_not_there_is_named(address, reason):
    with pytest.raises(EngineError, match=reason) as error:
        join(address, 0, "ranks.address")
    assert f"no Ray cluster could be joined at ranks.address={address}: " in str(error.value)


def test_without_ray_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install -e \"\.\[ray\]\"` installs it"):
        RayEngine("model", HFEngine)


def test_the_handler_of_sigterm_stays():
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_kept():
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_versions_are_named_and_builds_do_not_matter():
    here = versions()
    assert here["bapo-lightning"].endswith(f"(code {code_digest()})") and "+" not in here["torch"]
    assert differences(here, dict(here)) == ""
    assert differences({"torch": "2.13.0", "vllm": "1"}, {"torch": "2.12.0"}) == (
        "torch 2.12.0 instead of 2.13.0, vllm not installed instead of 1"
    )


@pytest.mark.slow
def test_a_cluster_that_is_not_there_ends_the_command_with_one_line(tmp_path):
    wrong = ("rollout=ray", "rollout.engine.address=127.0.0.1:1")
    done = run_command("bapo_lightning.cli.train", *wrong, f"run_folder={tmp_path / 'run'}")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: no Ray cluster could be joined at rollout.engine.address=127.0.0.1:1: " in done.stderr
    assert not (tmp_path / "run").exists()
