"""The example of docs/rewards.md, as it stands there."""

import re
import sys
from pathlib import Path

import yaml

from bapo_lightning.configuration.targets import Target
from bapo_lightning.types import Completion, FinishReason, Problem, Score, ScoreStatus

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "rewards.md").read_text()
PROBLEM = Problem("1", "2 + 3 =", "5")


def block(language):
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)[0]


def test_a_function_becomes_a_reward_by_its_target(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(block("python"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    reward = Target({**yaml.safe_load(block("yaml")), "max_words": 3}).make()
    texts = ["it is 5", "it is surely 5", "it is 6", ""]
    assert reward([PROBLEM] * 4, [Completion(text, 4, FinishReason.STOP) for text in texts]) == [
        Score(1.0, ScoreStatus.CORRECT, "5"), Score(0.5, ScoreStatus.CORRECT, "5"),
        Score(0.0, ScoreStatus.WRONG, "6"), Score(0.0, ScoreStatus.UNPARSABLE),
    ]  # fmt: skip
