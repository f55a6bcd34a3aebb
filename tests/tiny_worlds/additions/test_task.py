"""The language of the additions: splits, demonstrations, tokenizer."""

import random
import statistics

from bapo_lightning.rewards.final_value import final_value
from bapo_lightning.tiny_worlds.additions.task import CHARACTERS, Additions, addition_problems, demonstration
from bapo_lightning.tiny_worlds.tokenizer import build_tokenizer
from bapo_lightning.types import Completion, FinishReason

WORLD = Additions()


def _completion(text):
    ended = text.endswith("#")
    return Completion(text.removesuffix("#"), len(text), FinishReason.STOP if ended else FinishReason.LENGTH)


def test_the_splits_share_no_problem_and_cover_all_8100():
    train, validation = addition_problems("train"), addition_problems("validation")
    assert (len(train), len(validation)) == (7200, 900)
    assert len({problem.prompt for problem in train + validation}) == 8100
    assert len({problem.id for problem in train + validation}) == 8100


def test_the_split_is_the_same_every_time_and_a_limit_takes_its_beginning():
    prompts = [problem.prompt for problem in addition_problems("validation", 3)]
    assert prompts == ["91+16=", "18+78=", "57+30="]
    assert addition_problems("train", 5) == addition_problems("train")[:5]


def test_every_answer_is_the_sum_of_the_prompt():
    for problem in addition_problems("validation"):
        first, second = problem.prompt.rstrip("=").split("+")
        assert int(problem.answer) == int(first) + int(second)


def test_a_demonstration_without_noise_is_the_sum_and_the_sum_again():
    calm = Additions(slip=0.0, check_again=0.0)
    (problem,) = addition_problems("validation", 1)
    assert demonstration(problem, random.Random(0), calm) == "107.107#"


def test_a_demonstration_is_cut_at_the_token_limit():
    (problem,) = addition_problems("validation", 1)
    endless = demonstration(problem, random.Random(0), Additions(check_again=1.0))
    assert len(endless) == WORLD.response_tokens
    assert "#" not in endless


def test_demonstrations_end_in_their_last_written_value():
    generator = random.Random(0)
    for problem in addition_problems("train", 200):
        text = demonstration(problem, generator)
        if text.endswith("#"):
            thoughts, final = text.removesuffix("#").split(".")
            assert thoughts.replace(";", ",").replace(":", ",").split(",")[-1] == final


def test_wrong_demonstrations_are_clearly_longer_than_right_ones():
    generator, problems = random.Random(0), addition_problems("train", 2000)
    completions = [_completion(demonstration(problem, generator)) for problem in problems]
    lengths = {1.0: [], 0.0: []}
    for completion, score in zip(completions, final_value(problems, completions), strict=True):
        lengths[score.value].append(completion.num_tokens)
    assert statistics.mean(lengths[0.0]) > 1.3 * statistics.mean(lengths[1.0])


def test_the_tokenizer_gives_back_what_it_was_given_one_token_per_character():
    tokenizer = build_tokenizer(CHARACTERS)
    text = "37+85=112,122;122:122.122#"
    encoded = tokenizer(text).input_ids
    assert len(encoded) == len(text)
    assert tokenizer.decode(encoded) == text
    assert tokenizer.decode(encoded, skip_special_tokens=True) == text.removesuffix("#")


def test_the_end_mark_is_the_end_token_and_padding_is_id_0():
    tokenizer = build_tokenizer(CHARACTERS)
    assert tokenizer.convert_tokens_to_ids("#") == tokenizer.eos_token_id
    assert tokenizer.pad_token_id == 0
    assert tokenizer(["1", "12"], padding=True).input_ids == [[0, 2], [2, 3]]
