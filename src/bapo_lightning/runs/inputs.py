"""Reads tokenizer and problems of a run before anything starts, so that a missing file is reported early."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from bapo_lightning.callbacks.validation import Validation
from bapo_lightning.configuration.evaluation_config import EvaluationConfig
from bapo_lightning.configuration.run_config import RunConfig
from bapo_lightning.configuration.sections import Data, EnvironmentSection, Lengths
from bapo_lightning.configuration.targets import Target
from bapo_lightning.data.problems.prompt_lengths import Fits, fits_by_bytes, none_fits
from bapo_lightning.data.problems.prompts import Encode, PromptRule, contradiction_of, dated, unknown_token
from bapo_lightning.data.problems.selection import Selection, overlap_warnings, select
from bapo_lightning.data.rollouts.conversations import Conversations
from bapo_lightning.data.rollouts.feedback import ChatFeedback
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.data.rollouts.schedule import Row, read_schedule
from bapo_lightning.data.rollouts.schedule_check import contradiction
from bapo_lightning.environments.environment import Environment
from bapo_lightning.modules.policy.folder import generation_config, model_path
from bapo_lightning.rewards.scores import Reward
from bapo_lightning.rollout.engine import SamplingParams
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.runs.reward_trial import try_reward
from bapo_lightning.system.errors import CheckpointError, ConfigError, DataError
from bapo_lightning.system.phases import phase
from bapo_lightning.system.pretrained import read_model_config, read_pretrained
from bapo_lightning.system.printable import say
from bapo_lightning.system.run_folder.checkpoint import last_journals
from bapo_lightning.system.run_folder.config_keys import differences, shapes_schedule
from bapo_lightning.system.run_folder.journal import JournalDigest
from bapo_lightning.system.run_folder.record import SCHEDULE_FILE, read_config
from bapo_lightning.types import Problem


@dataclass(frozen=True)
class Inputs:
    """Inputs of a run."""

    tokenizer: Any
    prompt: PromptRule
    problems: Selection

    @property
    def first_prompt(self) -> str:
        """First training problem as the policy reads it."""
        text: str = self.tokenizer.decode(self.prompt(self.tokenizer, self.problems.train[0]))
        return text


@phase("reading tokenizer and problems")
def read_inputs(config: RunConfig, date: datetime | None = None) -> Inputs:
    """Reads tokenizer, prompt rule and problems, and tries the reward on them. Chat templates write the
    `date`, or the present. Raises DataError if one cannot be loaded, and RewardError, see `try_reward`.
    """
    path = model_path(config.model.path)
    num_embeddings = read_model_config(path).get_text_config().vocab_size
    tokenizer = dated(read_pretrained(AutoTokenizer, path), date or datetime.now(UTC))
    prompt, scale = config.data.prompt.make(2), config.scale
    encode = known(within(partial(prompt, tokenizer), num_embeddings, path), tokenizer)
    fits = fits_by_bytes(prompt, tokenizer, num_embeddings)
    problems = read_problems(config.data, encode, scale.max_prompt_tokens, scale.validation_problems, fits)
    if clash := contradiction_of(problems.train, lambda problem: tokenizer.decode(encode(problem).tolist())):
        say(f"warning: {clash}", sys.stderr)
    try_reward(config.reward, judged_sets(config, problems), tokenizer, config.environment is not None)
    return Inputs(tokenizer, prompt, problems)


def judged_sets(config: RunConfig, problems: Selection) -> dict[str, list[Problem]]:
    """Returns the sets whose answers a run judges, by the keys that make them."""
    judged = {"data.train": problems.train}
    if any(node.is_a(Validation) and node.options.get("every") for node in config.callbacks.nodes.values()):
        judged |= {f"data.validation.{name}": held_out for name, held_out in problems.validation.items()}
    return judged


def within(encode: Encode, num_embeddings: int, path: str) -> Encode:
    """Returns `encode` with a DataError for tokens without an embedding in the model."""

    def encoded(problem: Problem) -> array[int]:
        ids = encode(problem)
        if (largest := max(ids, default=0)) >= num_embeddings:
            raise DataError(
                f"model.path={path}: the prompt of problem {problem.id} has the tokenizer's token "
                f"{largest}, and the model has embeddings of {num_embeddings} tokens; use the tokenizer that "
                "belongs to the model, or resize its embeddings"
            )
        return ids

    return encoded


def known(encode: Encode, tokenizer: Any) -> Encode:
    """Returns `encode` with one warning for the first prompt with a character that the model cannot read."""
    unknown, warned = unknown_token(tokenizer), list[str]()

    def encoded(problem: Problem) -> array[int]:
        ids = encode(problem)
        if unknown is not None and not warned and unknown in ids:
            warned.append(problem.id)
            alone = partial(tokenizer.encode, add_special_tokens=False)
            lost = sorted(ascii(one) for one in set(problem.prompt) if alone(one)[-1:] == [unknown])
            what = f"{', '.join(lost) or 'a character around it'}, which the model reads as"
            note = f"problem {problem.id} has {what} {tokenizer.convert_ids_to_tokens(unknown)}"
            note += ": its tokenizer has no token for it, and other problems may have more"
            say(f"warning: {note}", sys.stderr)
        return ids

    return encoded


def read_set(node: Target, key: str) -> list[Problem]:
    """Returns the problems of a set. Raises DataError if it gives something else."""
    problems = node.make(list)
    for number, item in enumerate(problems):
        if not isinstance(item, Problem):
            what = f"a {type(item).__name__} as item {number}"
            raise DataError(f"{key}: {node.name} gives {what}, not a bapo_lightning.types.Problem")
    return problems


def read_problems(
    data: Data,
    encode: Callable[[Problem], array[int]],
    max_prompt_tokens: int,
    validation_problems: int,
    fits: Fits = none_fits,
) -> Selection:
    """Reads training and validation problems and filters them; longer prompts are left out and counted, and
    the first problems of each validation set are taken. Raises DataError if they are not available.
    """
    train = read_set(data.train, "data.train")
    validation = {name: read_set(node, f"data.validation.{name}") for name, node in data.validation.items()}
    filters = {name: node.make(2) for name, node in data.filters.items()}
    selection = select(train, validation, filters, encode, max_prompt_tokens, validation_problems, fits)
    for text in overlap_warnings(selection.account):
        say(f"warning: {text}", sys.stderr)
    return selection


def read_recorded_schedule(config: RunConfig, problems: Iterable[Problem]) -> list[Row] | None:
    """Returns the schedule that the run must follow; None if it has its own. Raises ConfigError: it is
    missing, was changed, or belongs to a run with other sizes. `problems`: of the training set.
    """
    folder = config.staleness.schedule
    if folder is None:
        return None
    try:
        stored, rows = read_config(Path(folder)), read_schedule(folder)
        recorded = last_journals(Path(folder, "checkpoints")).get(SCHEDULE_FILE)
        path = Path(folder, SCHEDULE_FILE)
        if recorded is None or JournalDigest(path).read_on(recorded["bytes"]) != recorded:
            raise DataError(f"{path} differs from what its run recorded; follow a run that was not changed")
    except (DataError, CheckpointError) as error:
        raise ConfigError([f"regime.schedule={folder}: {error}"]) from None
    others = list(differences(stored, config.plain))
    faults = [
        f"{key}={now}, but the run of regime.schedule={folder} has {before}; write {key}={before}"
        for key, before, now in others
        if shapes_schedule(key)
    ]
    if faults:
        raise ConfigError(faults)
    has_other_data = any(key.startswith("data.") for key, _, _ in others)
    known = None if has_other_data else {problem.id for problem in problems}
    if number := contradiction(rows, config.scale.group_size, known):
        raise ConfigError([
            f"regime.schedule={folder}: row {number} of {SCHEDULE_FILE} cannot follow those before it; "
            "follow a run that was not changed"
        ])  # fmt: skip
    return rows


def stop_token_ids(path: str, tokenizer: Any) -> tuple[int, ...]:
    """Returns the tokens that end a response: the tokenizer's and the model configuration's."""
    configured = generation_config(path).eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({token for token in [tokenizer.eos_token_id, *listed] if token is not None}))


def make_sampler(
    config: RunConfig | EvaluationConfig,
    engine: RestartingEngine,
    tokenizer: Any,
    prompt: PromptRule,
    reward: Reward,
    num_candidates: int = 0,
    **training: Any,
) -> RolloutSampler:
    """Returns a sampler by the keys that runs and evaluations share; `training` adds arguments."""
    environment, scale, rollout = config.environment, config.scale, config.rollout
    ends = stop_token_ids(model_path(config.model.path), tokenizer)
    stops = ends + turn_ends(environment, tokenizer)
    return RolloutSampler(
        engine=engine,
        tokenizer=tokenizer,
        prompt=prompt,
        reward=reward,
        sampling=SamplingParams(rollout.temperature, stops, rollout.top_p, rollout.top_k, num_candidates),
        max_new_tokens=scale.max_new_tokens,
        seed=config.seed,
        conversations=build_conversations(environment, tokenizer, ends, scale),
        ends=ends,
        **training,
    )


def build_conversations(
    environment: EnvironmentSection | None, tokenizer: Any, ends: tuple[int, ...], scale: Lengths
) -> Conversations | None:
    """Returns the conversations, if any. Raises DataError for a chat template that cannot be continued."""
    if environment is None:
        return None
    feedback = environment.feedback.make(2)
    if isinstance(feedback, ChatFeedback):
        feedback.check(tokenizer)
    return Conversations(
        environment=environment.answers.make(Environment),
        feedback=feedback,
        tokenizer=tokenizer,
        max_turns=environment.max_turns,
        max_reply_tokens=environment.max_reply_tokens,
        max_feedback_tokens=scale.max_feedback_tokens,
        max_new_tokens=scale.max_new_tokens,
        workers=environment.workers,
        ends=ends,
    )


def turn_ends(environment: EnvironmentSection | None, tokenizer: Any) -> tuple[int, ...]:
    """Returns the tokens that end a turn, except end tokens. Raises ConfigError for a text of several."""
    texts = environment.stop if environment is not None else ()
    encoded = {text: tokenizer.encode(text, add_special_tokens=False) for text in texts}
    problems = [
        f"environment.stop: {text!r} is {len(ids)} tokens of this model, and a turn ends with one; write "
        "another text, or let the end token end turns: environment.stop=[]"
        for text, ids in encoded.items()
        if len(ids) != 1
    ]
    if problems:
        raise ConfigError(problems)
    return tuple(token for (token,) in encoded.values())
