from array import array
from types import SimpleNamespace

import pytest
import torch
from tests.algorithms.resuming import PARTIAL, check_resumed_run
from tests.configuration.compositions import found
from tests.origins import check_layouts
from tests.token_tables import table

from bapo_lightning.algorithms.luffy import ExpertTraces, luffy
from bapo_lightning.data.rollouts.rules import Rules
from bapo_lightning.objectives.objective import slopes
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import NO_VERSION, FinishReason, Origin, Problem, Rollout

EXPERT = int(Origin.EXPERT)
TOKENIZER = SimpleNamespace(encode=lambda text, add_special_tokens: [*map(ord, text)], eos_token_id=9)


def test_tokens_of_an_expert_count_p_over_p_plus_gamma_and_others_their_ratio_without_bounds():
    tokens = table(
        [2.0, 2.0, -1.0, 3.0], torch.tensor([0.1, 0.9, 7.0, 0.1]),
        behaviour_logp=torch.tensor([0.0, 0.0, -4.0, -2.0]), origin=torch.tensor([EXPERT, EXPERT, 0, 0]),
    )  # fmt: skip
    # 0.1 / 0.2 = 0.5 and 0.9 / 1.0 = 0.9
    assert luffy(tokens).tolist() == pytest.approx([1.0, 1.8, -7.0, 0.3])


def test_an_experts_token_counts_most_where_the_policy_gives_it_gamma():
    probabilities = torch.tensor([0.001, 0.05, 0.1, 0.2, 0.99], dtype=torch.float64)
    ones, origin = torch.ones(5, dtype=torch.float64), torch.tensor(EXPERT)
    tokens = table(ones, probabilities, behaviour_logp=0.0, origin=origin)
    by_log_ratio = slopes(luffy, tokens) * probabilities
    expected = [0.1 * p / (p + 0.1) ** 2 for p in probabilities.tolist()]
    assert by_log_ratio.tolist() == pytest.approx(expected, rel=1e-6)
    assert by_log_ratio.argmax() == 2


def test_without_an_expert_it_is_the_policy_gradient_with_the_ratio():
    tokens = table([1.0, -2.0, 0.0], torch.tensor([0.5, 30.0, 2.0]))
    assert slopes(luffy, tokens).tolist() == [1.0, -2.0, 0.0]


def test_the_gradient_depends_on_neither_split_nor_layout():
    check_layouts(luffy, (Origin.EXPERT, Origin.POLICY))


def test_an_experts_answer_ends_like_the_policys_has_no_version_and_log_probs_of_zero():
    start, problem = Rollout(array("i", [5])), Problem("p", "", "", metadata={"solution": ["ab", "c"]})
    (made,) = ExpertTraces(count=1).open(TOKENIZER, problem, start)
    assert (made.prompt_ids, list(made.response_ids)) == (start.prompt_ids, [97, 98, 9])
    assert (made.finish, made.origin, list(made.logprobs)) == (FinishReason.STOP, Origin.EXPERT, [0.0] * 3)
    assert list(made.versions) == [NO_VERSION] * 3 and not made.aging_segments and not made.is_sampled
    assert len(ExpertTraces(count=3).open(TOKENIZER, problem, start)) == 2
    assert ExpertTraces().open(TOKENIZER, Problem("p", "", ""), start) == []
    ExpertTraces().check([Problem("q", "", ""), problem], ord)
    with pytest.raises(DataError, match=r"algorithm.rules.experts.column=proof: "):
        Rules({"experts": ExpertTraces("proof")}).check([problem], ord)


def test_experts_leave_room_for_the_policy():
    (text,) = found("algorithm=luffy", "algorithm.rules.experts.count=8")
    assert "write algorithm.rules.experts.count=1" in text


@pytest.mark.slow
def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path):
    check_resumed_run(tmp_path, '"origin": "expert"', "algorithm=luffy", *PARTIAL)
