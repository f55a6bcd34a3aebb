"""One evaluation from its composed configuration: finds its subject, samples, judges, reports.

    checkpoint -> policy -> engine (log-probs compared with the policy's) -> samples.jsonl -> results.json

Samples are requested in a fixed order, a fixed number at once, and recorded in that order. Draws depend only
on seed, problem and number: after a kill the rest is sampled, and the file ends the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from bapo_lightning.callbacks.run_manifest import ending, environment, session_start
from bapo_lightning.configuration.evaluation_config import EvaluationConfig
from bapo_lightning.data.rollouts.answers import Asked, sample_answers
from bapo_lightning.data.rollouts.sampler import RolloutSampler
from bapo_lightning.modules.policy.factory import build_policy
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.options import ModelOptions
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.rollout.engine import RolloutEngine
from bapo_lightning.rollout.recovery import RestartingEngine
from bapo_lightning.rollout.weight_sync import WeightSync
from bapo_lightning.runs.inputs import make_sampler
from bapo_lightning.runs.resume import write_config
from bapo_lightning.runs.reward_trial import try_reward
from bapo_lightning.system.phases import phase
from bapo_lightning.system.run_folder.journal import Journal
from bapo_lightning.system.run_folder.lock import RunLock
from bapo_lightning.system.run_folder.record import read_manifest
from bapo_lightning.system.run_folder.text_file import write_json
from bapo_lightning.tools.evaluation.console import followed, print_results
from bapo_lightning.tools.evaluation.folder import (
    RESULTS,
    SAMPLES,
    check_order,
    check_same_settings,
    outcomes,
    read_rows,
)
from bapo_lightning.tools.evaluation.results import set_estimates, status_counts
from bapo_lightning.tools.evaluation.subject import find_subject, inherit
from bapo_lightning.tools.evaluation.task import Task, read_task
from bapo_lightning.tools.export.checkpoint_weights import load_checkpoint_weights
from bapo_lightning.types import Sample


def evaluate(composed: DictConfig) -> None:
    """Evaluates, or continues to; checks before weights are loaded everything that can be checked then."""
    transformers.utils.logging.disable_progress_bar()
    with displayed_phases():
        with phase("checking the digests of the checkpoint"):
            subject = find_subject(composed.checkpoint)
        with phase("reading tokenizer and problems"):
            filled = inherit(composed, subject)
            config, task = read_task(composed, subject)
    folder = config.folder
    check_same_settings(folder, task.record)
    done = len(read_rows(folder))
    print(f"evaluating {subject.description} -> {folder}")
    if subject.run is not None and filled:
        print(f"from its run: {', '.join(filled)}")
    print(describe_settings(config))
    print("\n".join(task.account))
    there = f", {done} of them there already" if done else ""
    print(f"{config.k} samples of each problem: {len(task.requests)} in all{there}", flush=True)
    if done < len(task.requests):
        with displayed_phases():
            sample_rest(config, task, folder)
    print_results(report(config, task, folder))
    print(f"  written to  {folder}/\n              {SAMPLES}  {RESULTS}")


def describe_settings(config: EvaluationConfig) -> str:
    """How answers are sampled and judged, wherever the settings come from."""
    rollout = config.rollout
    cuts = [f"top_p {rollout.top_p}"] if rollout.top_p != 1.0 else []
    cuts += [f"top_k {rollout.top_k}"] if rollout.top_k != 0 else []
    nodes = {"prompt": config.data.prompt, "reward": config.reward}
    names = [f"{key} {node.name.rpartition('.')[2]}" for key, node in nodes.items()]
    length = f"at most {config.scale.max_new_tokens} tokens"
    return ", ".join([f"temperature {rollout.temperature:g}", *cuts, length, *names, f"seed {config.seed}"])


def sample_rest(config: EvaluationConfig, task: Task, folder: Path) -> None:
    """Samples what is missing in `samples.jsonl`.

    Raises:
        CheckpointError: another process is in the folder, or its samples belong to another evaluation.
        EngineError: the engine dies repeatedly.
        RewardError: see `try_reward`.
    """
    if config.cpu_threads:
        torch.set_num_threads(config.cpu_threads)
    sets = {f"data.validation.{name}": problems for name, problems in task.problems.items()}
    try_reward(config.reward, sets, task.tokenizer, config.environment is not None)
    with ExitStack() as stack:
        with phase("starting the engine"):
            engine = config.rollout.engine.make(RolloutEngine, model_path=model_path(config.model.path))
        stack.callback(engine.close)
        reward = config.reward.make(2)
        if hasattr(reward, "close"):
            stack.callback(reward.close)
        folder.mkdir(parents=True, exist_ok=True)
        stack.callback(RunLock(folder).release)
        journal = Journal(folder / SAMPLES, durable=True)
        if lost := journal.repair():
            print(f"{SAMPLES}: the last line had been torn, {lost} bytes are cut off")
        rows = read_rows(folder)
        check_order(rows, task.order, folder)
        write_config(folder, task.record)
        count = stack.enter_context(kept_manifest(folder))
        sampler = loaded_sampler(config, task, engine, reward)
        progress = stack.enter_context(followed(len(task.requests), len(rows)))
        step = config.samples_per_call
        for first in range(len(rows) // step * step, len(task.requests), step):
            part = task.requests[max(first, len(rows)) : first + step]
            samples = sample_answers(sampler, [item for _, item in part])
            journal.append(as_row(task, *entry, sample) for entry, sample in zip(part, samples, strict=True))
            count(samples)
            progress.add(samples)


def as_row(task: Task, name: str, request: Asked, sample: Sample) -> dict[str, Any]:
    """A line of samples.jsonl."""
    problem, number = request
    return {
        **{"set": name, "problem": problem.id, "sample": number},
        "status": sample.score.status.value,
        "value": sample.score.value,
        "answer": sample.score.answer,
        "gold": problem.answer,
        "num_tokens": sample.rollout.length,
        "finish": sample.rollout.finish,
        "prompt": task.tokenizer.decode(sample.rollout.prompt_ids.tolist()),
        "response": sample.text,
    }


def report(config: EvaluationConfig, task: Task, folder: Path) -> dict[str, Any]:
    """Makes results.json from samples.jsonl, and sends the numbers to the loggers if they are new."""
    rows = read_rows(folder)
    check_order(rows, task.order, folder)
    judged = {name: list(problems.values()) for name, problems in outcomes(rows).items()}
    results = {
        "name": config.name,
        "checkpoint": config.checkpoint,
        "version": task.subject.version,
        "k": config.k,
        "temperature": config.rollout.temperature,
        "max_new_tokens": config.scale.max_new_tokens,
        "sets": {
            name: {
                "num_problems": len(problems),
                "metrics": {metric: asdict(estimate) for metric, estimate in set_estimates(problems).items()},
                "verdicts": status_counts(problems),
            }
            for name, problems in judged.items()
        },
    }
    is_new = not (folder / RESULTS).exists()
    write_json(folder / RESULTS, results)
    if is_new:
        send_to_loggers(config, results)
    return results


def send_to_loggers(config: EvaluationConfig, results: dict[str, Any]) -> None:
    """Sends `eval/<set>/<metric>` at the step of the policy version to W&B and the CSV table."""
    values = {
        f"eval/{name}/{metric}": estimate["value"]
        for name, result in results["sets"].items()
        for metric, estimate in result["metrics"].items()
    }
    for node in config.logger.values():
        logger = node.make(Logger)
        logger.log_metrics(values, step=results["version"])
        logger.save()
        logger.finalize("success")


def loaded_sampler(
    config: EvaluationConfig, task: Task, engine: RolloutEngine, reward: Any
) -> RolloutSampler:
    """Makes the sampler, with the checkpoint's weights. Raises EngineError, and as `load_policy`."""
    rollout = config.rollout
    # Under greedy sampling every log-prob is 0, which would prove nothing.
    temperature = rollout.temperature or 1.0
    weight_sync = rollout.weight_sync.make(WeightSync, temperature=temperature)
    restarting = RestartingEngine(engine, weight_sync, task.tokenizer.vocab_size, rollout.max_restarts)
    policy, start = load_policy(config, task, temperature), time.perf_counter()
    restarting.load_weights(policy, task.subject.version)
    print(f"the engine has the weights after {time.perf_counter() - start:.1f} s", flush=True)
    return make_sampler(config, restarting, task.tokenizer, task.prompt, reward)


@phase("loading the model")
def load_policy(config: EvaluationConfig, task: Task, temperature: float) -> Policy:
    """The policy, on the CPU. Raises DataError, or CheckpointError for a checkpoint of another model."""
    path, length = model_path(config.model.path), config.scale.context_length
    policy = build_policy(ModelOptions.of(config.model, path, context_length=length), temperature)
    if task.subject.checkpoint is not None:
        load_checkpoint_weights(policy, task.subject.checkpoint.path)
    return policy


@contextmanager
def kept_manifest(folder: Path) -> Iterator[Callable[[Sequence[Sample]], None]]:
    """Context that keeps `manifest.json` of an existing folder current: `status` is running, finished,
    interrupted or failed. Yields the function that counts recorded samples.
    """
    sessions, start = read_manifest(folder).get("sessions", []), time.perf_counter()
    counts = {"num_samples": 0, "num_tokens": 0}
    session: dict[str, Any] = {**session_start(), **environment(), **counts}

    def write(status: str) -> None:
        session["wall_seconds"] = round(time.perf_counter() - start, 3)
        content = {"kind": "evaluation", "status": status, "sessions": [*sessions, session]}
        write_json(folder / "manifest.json", content)

    def count(samples: Sequence[Sample]) -> None:
        session["num_samples"] += len(samples)
        session["num_tokens"] += sum(sample.rollout.length for sample in samples)
        write("running")

    write("running")
    try:
        yield count
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt):
            session["error"] = f"{type(error).__name__}: {error}"
        write(ending(error))
        raise
    write("finished")
