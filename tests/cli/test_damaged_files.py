"""No file ends a command in a traceback: recorded files x damages of file and fields x what reads them."""

import json
import random
import shutil
from functools import partial
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir
from tests.damages import of_fields, of_file

from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.hydra_versions import BASE
from bapo_lightning.report import style
from bapo_lightning.runs.command import command
from bapo_lightning.runs.resume import open_run
from bapo_lightning.system.run_folder.record import read_config, read_tokens
from bapo_lightning.tools.commands import compare, eval_table, export, record, view
from bapo_lightning.tools.evaluation.run import load_policy
from bapo_lightning.tools.evaluation.subject import find_subject, inherit
from bapo_lightning.tools.evaluation.task import read_task

SAMPLED, MANY = 3, 12  # damages of a file that are tried, each on one of the commands that read it
TOKENS = {"step": 3, "ratio": [1.0, 0.5], "age": [0, 1]}


@command(1)
def resume(run, plain):
    """Begins to go on with a copy of a run, up to what would be trained."""
    folder = Path(plain["run_folder"])
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run, folder)
    start = open_run(SimpleNamespace(plain=plain, folder=folder, resume="auto"))
    if start is not None:
        start.prepare(plain, {"validation": {}})
        start.release()


@command(1)
def evaluate(run):
    """Begins to evaluate a run, up to what would be sampled."""
    with initialize_config_dir(conf_dir(), **BASE):
        composed = compose("eval", overrides=[f"checkpoint={run}"])
    subject = find_subject(composed.checkpoint)
    inherit(composed, subject)
    config, task = read_task(composed, subject)
    load_policy(config, task, 1.0)


@pytest.fixture(scope="module")
def files(trained, whole, tmp_path_factory):
    """Two runs and an evaluation, and what reads each of their files."""
    root = tmp_path_factory.mktemp("damaged")
    run, other, evaluation = (root / name for name in ("runs/one", "runs/two", "evaluation"))
    for source, folder in ((trained, run), (trained, other), (whole, evaluation)):
        shutil.copytree(source, folder)
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps({**manifest, "seed": 1}))
    (run / "tokens.jsonl").write_text(json.dumps(TOKENS) + "\n")
    runs = {name: {"overrides": [], "exit_code": 0} for name in ("one", "two", "three")}
    (run.parent / "sweep.json").write_text(json.dumps({"sweep": "quickstart", "runs": runs}))
    longer = read_config(run) | {"run_folder": str(root / "copy")}
    longer["scale"] = longer["scale"] | {"num_rollout_batches": 9}
    reads = {
        "view": partial(view.main, [str(run), "--once"]),
        "summary": partial(compare.main, [str(run)]),
        "compare": partial(compare.main, [str(run), str(other), "--output", str(root)]),
        "record": partial(record.main, [str(run), str(other), "--output", str(root / "recorded.json")]),
        "sweep": partial(compare.main, [str(run.parent), "--output", str(root)]),
        "export": partial(export.main, [str(run), str(root / "model"), "--overwrite"]),
        "resume": partial(resume, run, longer),
        "evaluate": partial(evaluate, run),
        "tokens": command(1)(lambda: read_tokens(run) and None),
        "eval-table": partial(eval_table.main, [str(evaluation), "--output", str(root)]),
    }
    checkpoint = sorted((run / "checkpoints").iterdir())[-1]
    by_file = {
        run / "manifest.json": ["view", "summary", "compare", "record", "export", "resume", "evaluate"],
        run / "config.yaml": ["view", "summary", "compare", "record", "export", "resume", "evaluate"],
        run / "metrics.jsonl": ["view", "summary", "compare", "record", "export"],
        run / "rollouts.jsonl": ["view"],
        run / "ledger.jsonl": ["summary"],
        run / "tokens.jsonl": ["tokens"],
        run.parent / "sweep.json": ["sweep"],
        checkpoint / "checkpoint.json": ["export", "resume", "evaluate"],
        checkpoint / "trainer.ckpt": ["export", "resume", "evaluate"],
        checkpoint: ["export", "resume", "evaluate"],
        run / "checkpoints/.update000099.partial": ["resume"],
        evaluation / "config.yaml": ["eval-table"],
        evaluation / "samples.jsonl": ["eval-table"],
    }
    return {path: {name: reads[name] for name in names} for path, names in by_file.items()}


def damages(path, content):
    """(what, bytes or None for a folder) of a file; of a configuration those of its upper fields."""
    yield from of_file(content).items()
    if path.suffix in (".json", ".jsonl", ".yaml"):
        for field, damage, changed in of_fields(path.name, content):
            if path.suffix != ".yaml" or field.count(".") < 2 or "bounds" in field:
                yield f"{field}: {damage}", changed


def put(path, content):
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)


def raw_errors(path, reads, count, capsys):
    """Damages that a command answers with another error than one of ours, or with none."""
    found, kept = [], path.parent / "kept"
    if path.exists():
        path.rename(kept)
    content = kept.read_bytes() if kept.is_file() else b"x"
    tried = random.Random(path.name).sample(every := list(damages(path, content)), min(count, len(every)))
    for (what, changed), (name, read) in zip(tried, cycle(reads.items()), strict=False):
        put(path, changed)
        try:
            code = read()
            told = capsys.readouterr()
            (told.out + told.err).encode()
            if code not in (0, 1, 2) or (code and "error: " not in told.err):
                found.append(f"{path.name}, {what}, {name}: ended with {code} and {told.err}")
        except BaseException as error:
            found.append(f"{path.name}, {what}, {name}: {type(error).__name__}: {error}")
    put(path, b"")
    path.unlink()
    if kept.exists():
        kept.rename(path)
    return found


@pytest.mark.parametrize("count", [SAMPLED, pytest.param(MANY, marks=pytest.mark.slow)])
def test_no_damage_of_any_file_ends_in_a_traceback(files, count, capsys, monkeypatch):
    monkeypatch.setattr(style, "save_png", lambda figure, path: path)
    found = [error for path, reads in files.items() for error in raw_errors(path, reads, count, capsys)]
    assert found == [], "\n".join(found)
