"""Verdicts that workers on several nodes find."""

import os
import signal
from contextlib import closing, suppress
from functools import partial

import psutil
import pytest
from tests.extras.math.verdicts import RIGHT
from tests.extras.ray.clusters import failing
from tests.tools.sweeps.pretended import wait_until

from bapo_lightning.extras.math.reward import MathReward
from bapo_lightning.extras.ray.verdicts import VerdictsOnNodes
from bapo_lightning.system.errors import RewardError
from bapo_lightning.types import Completion, FinishReason, Problem, ScoreStatus

pytestmark = pytest.mark.slow
PAIRS = RIGHT["small numbers"] + RIGHT["units"]
PROBLEMS = [Problem(str(number), "", gold) for number, (gold, _) in enumerate(PAIRS)]
ANSWERS = [Completion(rf"\boxed{{{answer}}}", 5, FinishReason.STOP) for _, answer in PAIRS]


@pytest.mark.drill
def test_workers_on_several_nodes_give_the_verdicts_of_one_process_though_one_dies_and_a_node_is_lost(nodes):
    here = MathReward(num_workers=1)
    wanted = here(PROBLEMS, ANSWERS)
    here.close()
    assert {score.status for score in wanted} == {ScoreStatus.CORRECT}
    several = VerdictsOnNodes(partial(MathReward, num_workers=1), nodes.address, 4, answers_per_call=3)
    with nodes.one_more() as node, closing(several) as judged:
        assert judged(PROBLEMS, ANSWERS) == wanted
        wait_until(lambda: len(workers_of(nodes)) == 4)  # those of a try that failed end later
        workers = workers_of(nodes)
        assert len({worker.ppid() for worker in workers}) == 4
        os.kill(workers[0].pid, signal.SIGKILL)
        assert judged(PROBLEMS, ANSWERS) == wanted
        nodes.remove(node)
        assert judged(PROBLEMS, ANSWERS) == wanted


def workers_of(nodes):
    """Processes of the cluster that judge, by the name that Ray gives them."""
    found = []
    for process in nodes.processes():
        with suppress(psutil.NoSuchProcess):
            if (process.cmdline() or [""])[0].startswith("ray::VerdictWorker"):
                found.append(process)
    return found


def test_an_error_of_the_reward_is_one_of_ours_and_is_not_tried_again(nodes, tmp_path):
    calls = tmp_path / "calls"
    with closing(VerdictsOnNodes(partial(partial, failing, calls), nodes.address, 1)) as judged:
        with pytest.raises(RewardError, match="answers could not be judged on the Ray cluster: TypeError"):
            judged(PROBLEMS[:1], ANSWERS[:1])
        assert calls.read_text() == "called\n"
