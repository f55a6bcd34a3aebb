"""Tokenizer, prompts and problems of an evaluation, all read before any weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig
from transformers import AutoTokenizer

from bapo_lightning.configuration.compose import resolve
from bapo_lightning.configuration.evaluation_config import EvaluationConfig
from bapo_lightning.configuration.machine_rules import run_folder_problems
from bapo_lightning.configuration.rank_rules import length_problems
from bapo_lightning.configuration.validate import validate_evaluation
from bapo_lightning.data.problems.columns import ProblemSet
from bapo_lightning.data.problems.prompts import dated
from bapo_lightning.data.rollouts.answers import Asked, all_samples
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.runs.inputs import read_set
from bapo_lightning.system.errors import ConfigError, DataError
from bapo_lightning.system.pretrained import read_pretrained
from bapo_lightning.tools.evaluation.folder import content_digest, default_folder
from bapo_lightning.tools.evaluation.subject import Subject, weights_digest
from bapo_lightning.types import Problem


@dataclass(frozen=True)
class Task:
    """Problems to answer, and the subject that answers them."""

    subject: Subject
    tokenizer: Any
    prompt: Any  # a prompt rule
    problems: dict[str, list[Problem]]  # by the name of the set
    account: list[str]  # what each set was read from and what of it is not answered, for people
    requests: list[tuple[str, Asked]]  # (set, sample), in the order of samples.jsonl
    record: dict[str, Any]  # all settings, and digests of the weights, problems and prompts: config.yaml

    @property
    def order(self) -> list[tuple[str, str, int]]:
        """(set, problem id, number of the sample) of every line of samples.jsonl."""
        return [(name, problem.id, number) for name, (problem, number) in self.requests]


def read_task(composed: DictConfig, subject: Subject) -> tuple[EvaluationConfig, Task]:
    """The configuration and its task. Raises ConfigError for its faults, DataError for unreadable inputs."""
    is_longest = composed.scale.max_prompt_tokens is None
    if is_longest:
        composed.scale.max_prompt_tokens = 1  # until prompts are known
    config = validate_evaluation(resolve(composed))
    tokenizer = read_pretrained(AutoTokenizer, model_path(config.model.path), "checkpoint")
    tokenizer = dated(tokenizer, subject.date)
    prompt = config.data.prompt.make(2)
    read = {name: read_set(node, f"data.validation.{name}") for name, node in config.data.validation.items()}
    problems = {name: list(group[: config.problems_per_set]) for name, group in read.items()}
    prompts = {name: [prompt(tokenizer, problem) for problem in group] for name, group in problems.items()}
    longest = max((len(ids) for group in prompts.values() for ids in group), default=0)
    check_problems(problems, longest, None if is_longest else config.scale.max_prompt_tokens)
    if is_longest:
        composed.scale.max_prompt_tokens = longest
        config = validate_evaluation(resolve(composed))
    evaluated = {
        "weights": weights_digest(subject),
        "version": subject.version,
        "sets": {
            name: {
                "num_problems": len(group),
                "problems": content_digest([[item.id, item.prompt, item.answer] for item in group]),
                "prompts": content_digest([ids.tolist() for ids in prompts[name]]),
            }
            for name, group in problems.items()
        },
    }
    if config.run_folder is None:
        composed.run_folder = str(default_folder(config, evaluated))
        config = validate_evaluation(resolve(composed))
    faults = [*length_problems(config.model.path, config.scale), *run_folder_problems(str(config.folder))]
    if faults:
        raise ConfigError(faults)
    requests = [(name, item) for name, group in problems.items() for item in all_samples(group, config.k)]
    account = [account_line(name, group, len(problems[name])) for name, group in read.items()]
    record = {**config.plain, "evaluated": evaluated}
    return config, Task(subject, tokenizer, prompt, problems, account, requests, record)


def account_line(name: str, read: Sequence[Problem], num_taken: int) -> str:
    """Origin of a set, how many of its problems are answered, and why the others are not."""
    beyond = {"beyond problems_per_set": len(read) - num_taken} if num_taken < len(read) else {}
    left_out = {**(read.left_out if isinstance(read, ProblemSet) else {}), **beyond}
    line = f"{name}: {num_taken} problems"
    if isinstance(read, ProblemSet):
        line += f" from {read.origin} ({read.num_rows} rows)"
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
    return line + (f"; left out: {reasons}" if reasons else "")


def check_problems(problems: dict[str, list[Problem]], longest: int, limit: int | None) -> None:
    """Raises DataError for no problems, equal ids, prompts beyond the limit: no mean leaves one out."""
    for name, group in problems.items():
        if not group:
            raise DataError(f"data.validation.{name} holds no problems; check its options")
        if len({problem.id for problem in group}) < len(group):
            raise DataError(
                f"data.validation.{name} has problems with equal ids, which would share their draws; give "
                "each its own"
            )
    if limit is not None and longest > limit:
        raise DataError(
            f"a prompt has {longest} tokens, more than scale.max_prompt_tokens={limit}, and an evaluation "
            f"leaves no problem out; write scale.max_prompt_tokens={longest}, or null"
        )
