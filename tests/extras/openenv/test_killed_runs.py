"""Runs that are killed, or whose server is, end as one that was left alone, to the bit. Runs whose server
breaks the protocol end as well.
"""

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.commands import Command, run_command, wait_until
from tests.extras.openenv.hostile import HostileWorld
from tests.runs.written import rows, same, weights
from tests.system.peers.hostile import serving

from bapo_lightning.system.run_folder.record import read_rollouts

ROOT = Path(__file__).resolve().parents[3]
NUM_UPDATES = 24
TRAIN = "bapo_lightning.cli.train"


def settings(place):
    command = f"[{sys.executable},-m,tests.extras.openenv.guessing,'{{port}}',{place / 'messages'}]"
    return [
        *("experiment=additions", "debug=fast", "scale.num_rollout_batches=3"),
        "callbacks.checkpoint.every=1",
        *("environment=openenv", "environment/feedback=plain", "environment.feedback.role=null"),
        *("environment.stop=[';']", "environment.max_turns=4", "environment.max_reply_tokens=4"),
        *("environment.workers=0", "environment.answers.show=';'", "scale.max_feedback_tokens=12"),
        *("data=openenv", "data/prompt=plain", "data.train.count=32", "data.validation.openenv.count=4"),
        *("+data.train.reset.sums=true", "data.train.world=sums", "reward=environment"),
        f"environment.answers.server.command={command}",
        f"environment.answers.server.folder={ROOT}",
        f"output_root={place}",
    ]


def messages(place):
    """What was asked, by the process of the server, its session, and the kind of the message."""
    file = place / "messages"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(*line.split(" ", 1)[0].split("."), line.split(" ", 1)[1]) for line in lines]


def begun(place, updates):
    written = list(place.glob("additions/*/metrics.jsonl"))
    return bool(written) and written[0].read_text().count("\n") >= updates


def folder_of(place):
    (folder,) = place.glob("additions/*")
    return folder


def train(place, *overrides):
    done = run_command(TRAIN, *settings(place), *overrides)
    assert done.returncode == 0, done.stderr
    return folder_of(place)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(tmp_path_factory.mktemp("undisturbed"))


def assert_alike(folder, undisturbed):
    assert rows(folder) == rows(undisturbed)
    assert same(weights(folder, NUM_UPDATES), weights(undisturbed, NUM_UPDATES))


@pytest.mark.slow
def test_a_run_that_is_killed_asks_no_session_twice(undisturbed, tmp_path):
    process = Command(TRAIN, settings(tmp_path))
    wait_until(lambda: begun(tmp_path, 3), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    folder = train(tmp_path, "resume=auto")
    assert_alike(folder, undisturbed)
    assert any(row["train/reward"] != 0 for row in rows(folder))
    # A session is reset once but for those that make problems, and an action of a session is one more try.
    resets = Counter((pid, name) for pid, name, asked in messages(tmp_path) if asked.startswith("reset"))
    steps = {(pid, name) for pid, name, asked in messages(tmp_path) if asked.startswith("step")}
    assert steps and all(resets[session] == 1 for session in steps)


@pytest.mark.slow
def test_a_server_that_is_killed_changes_nothing(undisturbed, tmp_path):
    process = Command(TRAIN, settings(tmp_path))
    wait_until(lambda: begun(tmp_path, 3), process)
    server = int([pid for pid, _, asked in messages(tmp_path) if asked.startswith("step")][-1])
    os.kill(server, signal.SIGKILL)
    process.communicate()
    assert process.returncode == 0
    folder = folder_of(tmp_path)
    assert_alike(folder, undisturbed)
    assert len({pid for pid, _, asked in messages(tmp_path) if asked.startswith("step")}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["double", "reward_nan"])
def test_one_answer_in_five_that_breaks_the_protocol_costs_no_run_and_no_number(tmp_path, mode):
    with serving(HostileWorld()) as world:
        url = f"environment.answers.server.url={world.url}/some-{mode}"
        reset = "~data.train.reset.sums"  # which this world does not take
        folder = train(tmp_path, url, "environment.answers.server.command=[]", reset)
    assert world.lapses > 20 and len(rows(folder)) == NUM_UPDATES
    assert {row["reward"] for row in read_rollouts(folder)} <= {0.0, 0.5, 1.0, 1.5}  # 0.5 at every action
    assert all(0.0 <= row["turns/lost_share"] <= 0.5 for row in rows(folder))
