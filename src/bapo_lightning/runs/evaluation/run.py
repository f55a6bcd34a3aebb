"""One evaluation from its composed configuration: find what is evaluated, sample, judge, report.

    checkpoint -> policy -> engine (log-probs compared with the policy's) -> samples.jsonl -> results.json

Samples are asked for in a fixed order, so many at once, and written down in that order. Draws depend on seed,
problem and number alone: after a kill the rest is sampled, and the file ends as it would have.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from omegaconf import DictConfig

from bapo_lightning.configuration.evaluation_config import EvaluationConfig
from bapo_lightning.data.rollouts.answers import Asked, sample_answers
from bapo_lightning.evaluation.results import set_estimates, status_counts
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.phases import phase
from bapo_lightning.report.progress.display import phases_shown
from bapo_lightning.run_folder.journal import Journal
from bapo_lightning.run_folder.lock import RunLock
from bapo_lightning.run_folder.text_file import write_json
from bapo_lightning.runs.evaluation.console import followed, print_results
from bapo_lightning.runs.evaluation.engine import make_sampler
from bapo_lightning.runs.evaluation.folder import (
    RESULTS,
    SAMPLES,
    check_order,
    check_same_settings,
    outcomes,
    read_rows,
)
from bapo_lightning.runs.evaluation.manifest import EvaluationManifest
from bapo_lightning.runs.evaluation.subject import find_subject, inherit
from bapo_lightning.runs.evaluation.task import Task, read_task
from bapo_lightning.runs.resume import write_config
from bapo_lightning.types import Sample


def evaluate(composed: DictConfig) -> None:
    """Evaluates, or goes on with it; what can be checked before weights are loaded is."""
    transformers.utils.logging.disable_progress_bar()
    with phases_shown():
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
    print(f"{config.k} samples of each problem: {len(task.asked)} in all{there}", flush=True)
    if done < len(task.asked):
        with phases_shown():
            sample_rest(config, task, folder)
    print_results(report(config, task, folder))
    print(f"  written to  {folder}/\n              {SAMPLES}  {RESULTS}")


def describe_settings(config: EvaluationConfig) -> str:
    """How answers are sampled and judged, whoever chose it."""
    rollout = config.rollout
    cuts = [f"top_p {rollout.top_p}"] if rollout.top_p != 1.0 else []
    cuts += [f"top_k {rollout.top_k}"] if rollout.top_k != 0 else []
    nodes = {"prompt": config.data.prompt, "reward": config.reward}
    names = [f"{key} {node.name.rpartition('.')[2]}" for key, node in nodes.items()]
    length = f"at most {config.scale.max_new_tokens} tokens"
    return ", ".join([f"temperature {rollout.temperature:g}", *cuts, length, *names, f"seed {config.seed}"])


def sample_rest(config: EvaluationConfig, task: Task, folder: Path) -> None:
    """Sample what `samples.jsonl` lacks.

    Raises:
        CheckpointError: another process is in the folder, or its samples are not those of this evaluation.
        EngineError: the engine dies again and again.
    """
    if config.cpu_threads:
        torch.set_num_threads(config.cpu_threads)
    with ExitStack() as stack:
        with phase("starting the engine"):
            engine = config.rollout.engine.make(model_path=model_path(config.model.path))
        stack.callback(engine.close)
        reward = config.reward.make()
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
        manifest = stack.enter_context(EvaluationManifest(folder))
        sampler = make_sampler(config, task, engine, reward)
        progress = stack.enter_context(followed(len(task.asked), len(rows)))
        step = config.samples_per_call
        for first in range(len(rows) // step * step, len(task.asked), step):
            part = task.asked[max(first, len(rows)) : first + step]
            samples = sample_answers(sampler, [item for _, item in part])
            journal.append(as_row(task, *asked, sample) for asked, sample in zip(part, samples, strict=True))
            manifest.count(samples)
            progress.add(samples)


def as_row(task: Task, name: str, asked: Asked, sample: Sample) -> dict[str, Any]:
    """A line of samples.jsonl."""
    problem, number = asked
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
    """Make results.json of samples.jsonl, and send the numbers to the loggers when they are new."""
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
                "metrics": {metric: asdict(found) for metric, found in set_estimates(problems).items()},
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
    """`eval/<set>/<metric>` at the step of the policy version, for W&B and the CSV table."""
    values = {
        f"eval/{name}/{metric}": found["value"]
        for name, made in results["sets"].items()
        for metric, found in made["metrics"].items()
    }
    for node in config.logger.values():
        logger = node.make()
        logger.log_metrics(values, step=results["version"])
        logger.save()
        logger.finalize("success")
