from dataclasses import replace

import pytest
import torch
from tests.algorithms.resuming import check_resumed_run
from tests.builders import group, rollout
from tests.configuration.compositions import found
from tests.data.rollouts.scripted import ScriptedEngine, ruled, sampler
from tests.origins import check_layouts
from tests.token_tables import table

from bapo_lightning.algorithms.aepo import SecondSampling, aepo
from bapo_lightning.data.rollouts.rules import Rules
from bapo_lightning.objectives.advantages.group import group_advantages
from bapo_lightning.objectives.objective import slopes
from bapo_lightning.rollout.engine import SamplingParams
from bapo_lightning.types import Origin, Score, ScoreStatus


def test_tokens_of_another_temperature_have_no_ratio_and_all_others_are_ppos():
    tokens = table(
        [1.0, 1.0, 1.0, -2.0], torch.tensor([3.0, 3.0, 1.1, 0.7]), low=0.8, high=1.2,
        origin=torch.tensor([int(Origin.TEMPERED), 0, 0, 0]),
    )  # fmt: skip
    assert aepo(tokens).tolist() == pytest.approx([torch.tensor(3.0).log().item(), 1.2, 1.1, -1.6])
    by_log_ratio = slopes(aepo, tokens) * tokens.ratio
    assert by_log_ratio.tolist() == pytest.approx([1.0, 0.0, 1.1, 0.0])


def test_the_gradient_depends_on_neither_split_nor_layout():
    check_layouts(aepo, (Origin.TEMPERED, Origin.POLICY, Origin.POLICY))


class Recorder(ScriptedEngine):
    """Remembers what it was asked."""

    def generate(self, requests, sampling):
        self.asked = list(requests), sampling
        return super().generate(requests, sampling)


def every_other_answer_is_right(problems, completions):
    verdicts = [index % 2 == 1 for index in range(len(completions))]
    return [Score(float(right), ScoreStatus.CORRECT if right else ScoreStatus.WRONG) for right in verdicts]


def batch():
    answers = [[rollout([number], [7], [-1.0], version=2)] * 4 for number in range(8)]
    own = [1.0, 0.0, 0.0, 0.0], [1.5, -0.5, -0.5, -0.5]
    return [group(str(number), four, *own) for number, four in enumerate(answers)]


NO_RULES = Rules()


def sampled(entropy=0.0, rules=NO_RULES, **options):
    engine = Recorder(longest=3)
    engine.load_weights(None, 3)
    parts = {"reward": every_other_answer_is_right, "advantages": group_advantages, "rules": rules}
    source = replace(sampler(engine, max_new_tokens=6, max_restarts=0), **parts)
    groups, metrics = SecondSampling(**options).sampled(source, batch(), entropy, version=3)
    return engine, groups, metrics


def test_right_answers_of_the_first_prompts_take_the_first_places_with_an_advantage_of_one():
    _engine, groups, metrics = sampled()
    origins = [[sample.rollout.origin for sample in item.samples] for item in groups]
    hot, own = Origin.TEMPERED, Origin.POLICY
    assert origins == [[hot, hot, own, own]] * 2 + [[own] * 4] * 6
    assert groups[0].advantages == (1.0, 1.0, -0.5, -0.5) and groups[2] == batch()[2]
    assert all(sample.score.value == 1.0 for sample in groups[0].samples[:2])
    assert groups[1].samples[0].rollout.prompt_ids == groups[1].samples[3].rollout.prompt_ids
    assert (groups[0].newest_version, groups[0].oldest_version) == (3, 2)
    found = {name: metrics[f"rollout/second_{name}"] for name in ("temperature", "right", "used")}
    assert found == {"temperature": 1.2, "right": 4, "used": 4}


def test_a_policy_above_the_target_is_sampled_colder_and_half_as_much_is_taken():
    engine, groups, metrics = sampled(entropy=0.6)
    assert engine.asked[1] == SamplingParams(0.8, (9,)) and metrics["rollout/second_used"] == 2
    taken = [[sample.rollout.origin is Origin.TEMPERED for sample in item.samples] for item in groups]
    assert [sum(each) for each in taken] == [2, 0, 0, 0, 0, 0, 0, 0]
    assert sampled(entropy=0.5)[2]["rollout/second_temperature"] == 1.2


def test_no_more_are_taken_than_may_be_and_none_that_is_not_right_enough():
    assert sampled(most=3)[2]["rollout/second_used"] == 3
    _, groups, metrics = sampled(above=5.0)
    assert metrics["rollout/second_used"] == 0 and groups == batch()


def test_the_second_sampling_has_random_numbers_of_its_own():
    hot, _, _ = sampled()
    cold, _, _ = sampled(entropy=1.0)
    seeds = [{request.seed for request in engine.asked[0]} for engine in (hot, cold)]
    assert len(seeds[0]) == len(seeds[1]) == 8 and not seeds[0] & seeds[1]


def test_answers_that_are_not_trained_on_are_not_taken():
    _, groups, metrics = sampled(rules=ruled(keeps=lambda sample: False))
    assert metrics["rollout/second_right"] == 0 and groups == batch()


@pytest.mark.parametrize(("overrides", "complaint"), [
    (["regime=async"], "the engine is busy with later batches"),
    (["algorithm.stages.second_sampling.share=0.001"], "of scale.prompts_per_batch=64 prompts is none"),
    (["algorithm.stages.second_sampling.low=1.3"], "low=1.3 must be below"),
])  # fmt: skip
def test_one_mistake_gives_one_complaint_that_names_it(overrides, complaint):
    (text,) = found("algorithm=aepo", *overrides)
    assert complaint in text


@pytest.mark.slow
def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path):
    check_resumed_run(tmp_path, '"origin": "tempered"', "algorithm=aepo", "regime=replay", "regime.epochs=1")
