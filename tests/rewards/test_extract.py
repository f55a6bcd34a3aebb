import pytest

from bapo_lightning.rewards.extract import MAX_ANSWER_CHARACTERS, final_answer


@pytest.mark.parametrize(("text", "answer"), [
    # the last closed box
    (r"so \boxed{42}.", "42"), (r"\boxed{1} is wrong, it is \boxed{2}", "2"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"), (r"\boxed{\left\{ x \right\}}", r"\left\{ x \right\}"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"), (r"\fbox{7}", "7"), (r"\boxed {7}", "7"),
    (r"\boxed{\boxed{7}}", "7"), (r"first \boxed{5}, then cut inside \boxed{6", "5"), (r"\boxed{}", None),
    (r"\boxed{", None),
    # boxes in a row are one answer
    (r"\boxed{1},\boxed{2}", "1, 2"), (r"\boxed{6} \quad \text{and} \quad \boxed{8}", "6, 8"),
    (r"\(x = \boxed{1}\) and \(y_2 = \boxed{3}\)", "1, 3"), (r"$\boxed{1}\boxed{2}$", "1, 2"),
    (r"\boxed{5}, \boxed{5}", "5"), ("\\boxed{5}\n\n\\boxed{6}", "6"),
    (r"\boxed{5}. So the answer is \boxed{6}", "6"),
    # other marks
    ("Answer: 5", "5"), ("**Answer:** 5", "5"), ("**Answer: 5**", "5"), ("Answer：5", "5"),
    ("Answer:\n$5$\nThat was easy", "$5$"), ("Final answer:\n\n\\[\n5\n\\]", "\\[\n5\n\\]"),
    ("Answer: 3.5. That is all", "3.5"), ("Answer: ", None),
    ("The final answer is $\\frac{1}{2}$. I hope it is correct.", r"$\frac{1}{2}$"),
    ("the final answer is: 12", "12"), ("The final answer to your question is 12", "12"),
    ("the final answer is:", None), ("#### 42", "42"),
    ("so 6 * 7 = 42\n#### 1,234 apples", "1,234 apples"), ("#### 3. Solve the equation", None),
    ("#### Step 2", None), ("Answer: 42<|im_end|>", "42"),
    # the last of several marks
    (r"\boxed{255}. Final Answer: The final answer is $10,455$. I hope it is correct.", "$10,455$"),
    (r"Answer: \boxed{42}", "42"), ("Answer: 5\n#### 6", "6"), ("#### 6\n\\boxed{7}", "7"),
    ("\\boxed{7}\n#### 1. Why this is so", "7"), ("The final answer is 5. Wait, no. Answer: 6", "6"),
    # what stands around an answer
    ("Answer: `13`", "13"), ("Answer:\n```\n13\n```", "13"), ("Answer: “13”", "13"),
    ("Answer: <b>13</b>", "13"), ("Answer: ==13==", "13"), ("> Answer: 13 🎉", "13"),
    ("Answer: \u200b13\ufeff", "13"), ("Answer: 13</s>", "13"), ("Answer: `1``3`", "`1``3`"),
    ("**Final Answer**\n13", "13"), ("### Answer\n\n13", "13"), ("The answer\n13", None),
    ("#### $13$", "13"), ("#### **13**", "13"), (r"#### \(13\)", "13"), ("#### 13</s>", "13"),
    (r"#### $\frac{3}{4}$", r"\frac{3}{4}"), ("#### **Step 2**", None), ("#### $x$ and $y$", None),
    (r"\boxed{\text{Answer: }13}", r"\text{Answer: }13"),
    # tags; thoughts have no answer
    ("<think>2+3</think>\n<answer>5</answer>", "5"), ("<answer>so \\boxed{5}.</answer>", "5"),
    ("<answer>\n$5$\n</answer>", "$5$"), ("<answer>Answer: 5</answer>", "5"), ("<answer>5", None),
    ("<answer>4</answer> no, <answer>5</answer>", "5"), ("<answer>4</answer> no, \\boxed{5}", "5"),
    ("<think>the answer: 4</think>\n<answer>5</answer>", "5"), ("<answer></answer>", None),
    (r"\boxed{4}</think> It is 5.", None), (r"<think>maybe \boxed{4}</think> So \boxed{5}", "5"),
    (r"<think>So \boxed{4}", None), ("<think>4</think> Answer: 5 <think>6", "5"),
    ("<think>Answer: 4</think>", None), ("<think>a</think>#### 5", "5"),
    # no mark
    *((text, None) for text in (
        "", "42", "The answer is 42", "x = 42", "$42$", "boxed{42}", "answer 42", "## 42",
    )),
])  # fmt: skip
def test_the_content_of_the_last_mark_is_the_answer(text, answer):
    assert final_answer(text) == answer


def test_what_is_longer_than_an_answer_is_none():
    assert final_answer(rf"\boxed{{{'1' * MAX_ANSWER_CHARACTERS}}}") == "1" * MAX_ANSWER_CHARACTERS
    assert final_answer(rf"\boxed{{{'1' * (MAX_ANSWER_CHARACTERS + 1)}}}") is None


def test_a_flood_of_marks_is_searched_from_its_end():
    flood = r"\boxed{1} " * 20_000 + "Answer: 2 " * 20_000 + "#### 3\n" * 20_000
    assert final_answer(flood) == "3"
    assert final_answer(r"\boxed{" * 100_000) is None
    assert final_answer(r"\boxed{9}" + "{" * 100_000) == "9"
