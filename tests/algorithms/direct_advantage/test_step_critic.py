"""The critic of steps: it learns what prefixes tell of outcomes, and says the same whatever stands beside."""

import random
from array import array
from dataclasses import replace

import pytest
import torch
from lightning import seed_everything
from tests.algorithms.direct_advantage.critics import random_critic
from tests.builders import random_model, rollout
from tests.data.rollouts.scripted import ScriptedEngine, sampler
from transformers import AutoTokenizer

from bapo_lightning.algorithms.direct_advantage.critic import CRITIC_KEY, StepCritic, build_critic
from bapo_lightning.algorithms.direct_advantage.steps import StepSplitter
from bapo_lightning.algorithms.direct_advantage.training import (
    Example,
    beginning,
    examples_of,
    fit_critic,
    with_completions,
)
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.rollout.engine import Generation
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import FinishReason, Problem, Sample, Score, ScoreStatus, Segment

CPU = torch.device("cpu")
RIGHT, WRONG = 5, 6  # first tokens that decide how a response ends


def samples(count, seed):
    """Responses of five tokens; the first one decides."""
    generator = random.Random(seed)
    found = []
    for _ in range(count):
        first = generator.choice([RIGHT, WRONG])
        rest = [generator.randrange(7, 20) for _ in range(4)]
        outcome = float(first == RIGHT)
        status = ScoreStatus.CORRECT if outcome else ScoreStatus.WRONG
        made = rollout([generator.randrange(1, 4)], [first, *rest], [-1.0] * 5)
        found.append(Sample(made, "", Score(outcome, status), outcome))
    return found


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A critic of such responses, split token by token, and its errors."""
    folder = tmp_path_factory.mktemp("critic")
    seed_everything(0, verbose=False)
    random_model(scale=1.0).save_pretrained(folder / "policy")
    model = build_critic(str(folder / "policy"), "float32", {"split": 1})
    splitter = StepSplitter(None, 1)
    train, held_out = (examples_of(samples(count, seed), splitter) for count, seed in ((512, 0), (128, 1)))
    quality = fit_critic(model, train, held_out, 1e-3, 4, 32, "cpu", folder / "best")
    model.save_pretrained(folder / "critic")
    return StepCritic(str(folder / "critic")), quality


def test_it_learns_that_the_first_token_decides(taught):
    critic, _ = taught
    rollouts = [rollout([2], [first, 8, 9, 10, 11], [-1.0] * 5) for first in (RIGHT, WRONG)]
    right, wrong = critic.values(rollouts, [[0, 1, 2, 3, 4]] * 2, 100, CPU)
    assert abs(right[0] - 0.5) < 0.1 and right[0] == pytest.approx(wrong[0], abs=1e-5)
    assert min(right[1:]) > 0.95 and max(wrong[1:]) < 0.05


def test_its_errors_are_those_of_prefixes_that_it_never_saw(taught):
    _, quality = taught
    assert quality["prefixes"] == 128 * 5
    # A fifth of the prefixes are prompts, of which nothing is known: 0.25 / 5.
    assert 0.045 < quality["brier"] < 0.065 and quality["calibration_error"] < 0.06
    assert quality["brier_of_mean"] == pytest.approx(0.25, abs=0.01)


def flat(values):
    return [value for own in values for value in own]


def test_a_value_depends_on_nothing_next_to_it(tmp_path):
    critic = StepCritic(str(random_critic(tmp_path)))
    generator = random.Random(0)
    rollouts = [
        rollout([1, 2], [generator.randrange(24) for _ in range(length)], [-1.0] * length)
        for length in (9, 1, 5, 3)
    ]
    states = [[1, 4, 7], [1], [1, 2, 5], [1, 3]]
    together = critic.values(rollouts, states, 1000, CPU)
    alone = critic.values(rollouts, states, 1, CPU)
    assert [len(own) for own in together] == [3, 1, 3, 2]
    assert flat(together) == pytest.approx(flat(alone), abs=1e-5)
    assert max(together[0]) - min(together[0]) > 0.01
    longer = rollout([1, 2], [*rollouts[3].response_ids, 7, 8], [-1.0] * 5)
    assert critic.values([longer], [states[3]], 100, CPU)[0] == pytest.approx(together[3], abs=1e-5)
    assert critic.split == 2 and critic.values([], [], 100, CPU) == []


def test_a_critic_has_its_models_weights_and_no_dropout():
    path = model_path("package://bapo_lightning/tiny_worlds/locks/model")
    made = build_critic(path, "bfloat16", {"split": r"\n+"})
    assert made.dtype is torch.bfloat16 and made.config.classifier_dropout == 0.0
    assert getattr(made.config, CRITIC_KEY) == {"split": r"\n+"} and made.score.weight.shape == (1, 64)
    assert AutoTokenizer.from_pretrained(path).vocab_size == made.config.vocab_size


class EndlessEngine(ScriptedEngine):
    """Writes 7s up to the limit; what it was asked is kept."""

    def generate(self, requests, sampling):
        self.asked = list(requests)
        return [
            Generation(
                Segment(array("i", [7] * each.max_new_tokens), array("f", [-1.0] * each.max_new_tokens), 0),
                FinishReason.LENGTH,
            )
            for each in requests
        ]


def second_of_each_pair_is_right(problems, completions):
    """Of two completions of a prefix; one of the prompt itself is wrong."""
    return [
        Score(float(place % 2 and "3" in done.text), ScoreStatus.CORRECT)
        for place, done in enumerate(completions)
    ]


def test_the_target_of_a_prefix_is_the_mean_over_its_completions_and_its_own_response():
    engine = EndlessEngine(longest=9)
    engine.load_weights(None, 0)
    source = replace(sampler(engine, max_new_tokens=4, max_restarts=0), reward=second_of_each_pair_is_right)
    made = rollout([1], [3, 4, 9], [-1.0, -2.0, -3.0])
    example = Example(made, [0, 1, 2], 1.0, [1.0] * 3)
    (found,) = with_completions([example], [Problem("p", "", "")], source, 2)
    assert found.targets == pytest.approx([1 / 3, 2 / 3, 2 / 3]) and found.outcome == 1.0
    asked = [(each.token_ids.tolist(), each.max_new_tokens) for each in engine.asked]
    assert asked == [([1], 4)] * 2 + [([1, 3], 3)] * 2 + [([1, 3, 4], 2)] * 2
    assert len({each.seed for each in engine.asked}) == 6


def test_a_beginning_goes_on_from_its_tokens():
    made = rollout([1, 2], [3, 4, 9], [-1.0, -2.0, -3.0])
    begun = beginning(made, 2)
    assert (begun.response_ids, begun.finish) == (array("i", [3]), None)
    whole = begun.extended(Segment(array("i", [5]), array("f", [-4.0]), 0), FinishReason.STOP, 4)
    assert (whole.response_ids, whole.logprobs) == (array("i", [3, 5]), array("f", [-1.0, -4.0]))
    assert beginning(made, 1).length == 0


def test_a_score_that_is_no_probability_is_refused():
    made = Sample(rollout([1], array("i", [2]), [-1.0]), "", Score(1.5, ScoreStatus.CORRECT), 1.5)
    with pytest.raises(DataError, match="predicts scores from 0 to 1, and the reward gave"):
        examples_of([made], StepSplitter(None, 1))
