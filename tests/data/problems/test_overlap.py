"""Evaluation problems hidden in a training set, unchanged or altered; those that only sound alike stay."""

import random
from itertools import product

import pytest

from bapo_lightning.data.problems.overlap import LeakageFilter, tokens
from bapo_lightning.types import Problem

WORDS = ["".join(parts) for parts in product("bdfgklmnprst", "aeiou", ("n", "r", "st", "l"))]
PHRASE = "where m and n are relatively prime positive integers . find the value of m plus n and write it down"


def text(rng, length):
    return " ".join(rng.choice(WORDS) for _ in range(length))


def altered(rng, words, rate):
    """Each word is with this probability replaced, left out or followed by another one."""
    changed = []
    for word in words.split():
        kind = rng.randrange(3) if rng.random() < rate else None
        changed += {None: [word], 0: [rng.choice(WORDS)], 1: [], 2: [word, rng.choice(WORDS)]}[kind]
    return " ".join(changed)


def found(training, held_out, **options):
    every = ([Problem(str(n), each, "") for n, each in enumerate(texts)] for texts in (training, held_out))
    problems, exam = every
    reasons = LeakageFilter(**options)(problems, {"exam": exam})
    assert LeakageFilter(against={"exam": exam}, **options)(problems, {}) == reasons
    assert set(reasons.values()) <= {"overlap with exam"}
    return sorted(map(int, reasons))


@pytest.mark.parametrize(("rate", "least"), [(0.0, 1.0), (0.05, 0.85)])
def test_altered_evaluation_problems_are_found_and_others_are_not(rate, least):
    rng = random.Random(5)
    held_out = [text(rng, rng.randint(25, 80)) for _ in range(200)]
    training = [text(rng, rng.randint(25, 80)) for _ in range(500)]
    training += [altered(rng, words, rate) for words in held_out]
    hits = found(training, held_out)
    assert [index for index in hits if index < 500] == []
    assert len(hits) >= least * 200


def test_case_layout_and_drawings_do_not_hide_a_copy():
    original = r"Let $x>0$ be such that $\dfrac{1}{x} \le 2$. Find the least value of $\left( x + 3 "
    original += r"\right)$ [asy]draw((0,0)--(1,1));[/asy]"
    copy = r"let \(x > 0\) be such that \(\frac 1x\le2\).  FIND the least value of \( (x+3) \)"
    assert tokens(original, drawings=False) == tokens(copy)
    assert found([copy, "Find the least value of y."], [original]) == [0]


def test_a_copy_inside_a_longer_text_and_a_part_of_a_problem_are_found():
    rng = random.Random(0)
    exam, around = text(rng, 40), text(rng, 300)
    part = " ".join(exam.split()[:25])
    assert found([f"{around} {exam}", part, around], [exam]) == [0, 1]


def test_a_phrase_that_many_problems_have_says_nothing():
    rng = random.Random(0)
    training = [f"{text(rng, 12)} {PHRASE}" for _ in range(40)]
    exam = f"{text(rng, 12)} {PHRASE}"
    assert found(training, [exam]) == []
    assert len(found(training, [exam], common=1000)) == 40
    assert found([*training, exam], [exam]) == [40]


def test_an_evaluation_problem_that_stands_often_in_the_training_set_is_no_phrase():
    rng = random.Random(0)
    exam = text(rng, 40)
    assert found([exam + " again"] * 50, [exam]) == list(range(50))


def test_a_short_problem_overlaps_only_as_a_whole():
    assert found(["Compute 2+2.", "Compute 2 + 3.", "compute $2 + 2$"], ["Compute 2 + 2"]) == [0, 2]
    chinese = "已知三角形的三边长分别为三四五求其外接圆半径与内切圆半径之和"  # compared by characters
    assert found(["若" + chinese, "求函数的最大值与最小值之差并写出自变量的集合"], [chinese]) == [0]
