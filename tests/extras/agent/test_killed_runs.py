"""A run with programs that is killed ends as one left alone, to the bit, and no program outlives it."""

import signal
import sys
from pathlib import Path

import psutil
import pytest
from tests.commands import Command, run_command, wait_until
from tests.extras.openenv.test_killed_runs import NUM_UPDATES, TRAIN, assert_alike, begun, folder_of

TOY = Path(__file__).with_name("toy.py")


def settings(place):
    return [
        *("experiment=additions", "debug=fast", "scale.num_rollout_batches=3", "reward=environment"),
        *("callbacks.checkpoint.every=1", "callbacks.validation.every=0", "callbacks.validation.first=false"),
        *("environment=agent", "environment/feedback=plain", "environment.stop=[';']"),
        *("environment.max_turns=4", "environment.max_reply_tokens=4", "environment.workers=0"),
        *("scale.max_feedback_tokens=12", f"environment.answers.endpoint.command=[{sys.executable},{TOY}]"),
        f"output_root={place}",
    ]


def train(place, *overrides):
    done = run_command(TRAIN, *settings(place), *overrides)
    assert done.returncode == 0, done.stderr
    return folder_of(place)


def programs():
    return [each.pid for each in psutil.process_iter(["cmdline"]) if str(TOY) in (each.info["cmdline"] or ())]


@pytest.mark.slow
def test_a_run_that_is_killed_ends_as_an_undisturbed_one_and_leaves_no_program(tmp_path):
    undisturbed = train(tmp_path / "undisturbed")
    process = Command(TRAIN, settings(tmp_path / "killed"))
    for updates in (1, 9):
        wait_until(lambda least=updates: begun(tmp_path / "killed", least), process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_until(lambda: not programs(), process)
        process = Command(TRAIN, [*settings(tmp_path / "killed"), "resume=auto"])
    process.communicate()
    assert process.returncode == 0
    assert_alike(folder_of(tmp_path / "killed"), undisturbed)
    assert len((undisturbed / "metrics.jsonl").read_text().splitlines()) == NUM_UPDATES
