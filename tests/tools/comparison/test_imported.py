"""Logs of TRL, verl, TensorBoard and W&B as runs that are compared by seed."""

import csv
import json
import math
import os
import random

import pytest
from tensorboardX import SummaryWriter

from bapo_lightning.system.errors import DataError
from bapo_lightning.system.run_folder.record import read_run
from bapo_lightning.tools.commands.compare import main
from bapo_lightning.tools.comparison import imported
from bapo_lightning.tools.comparison.imported import (
    ForeignRun,
    foreign_run,
    import_run,
    renamed,
    updates_without,
)

UPDATES = 20


def curve(name, seed):
    noise = random.Random(f"{name} {seed}")
    gain = {"grpo": 0.3, "mine": 0.5}[name]
    return [0.2 + gain * step / UPDATES + noise.gauss(0, 0.01) for step in range(1, UPDATES + 1)]


def trl(folder, values, max_steps=UPDATES, checkpoint="checkpoint-20"):
    """As `trainer.save_state` and checkpoints have it, with a row of validation and one of the end."""
    rows = [
        {"step": step, "epoch": 0.1, "reward": value, "entropy": 0.5, "grad_norm": 1.0, "loss": math.nan}
        for step, value in enumerate(values, 1)
    ]
    rows.insert(10, {"step": 10, "eval_reward": 0.4})
    rows.append({"step": len(values), "train_runtime": 12.0})
    state = {"global_step": len(values), "max_steps": max_steps, "log_history": rows}
    (folder / checkpoint).mkdir(parents=True)
    (folder / checkpoint / "trainer_state.json").write_text(json.dumps(state))
    return folder


def verl(file, values):
    rows = [
        {"step": step, "data": {"training/global_step": step, "critic/rewards/mean": value,
                                "actor/entropy": 0.4, "val-core/math/dapo/acc/mean@8": value}}
        for step, value in enumerate(values, 1)
    ]  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 21, "da')
    return file


def test_trl_and_verl_are_compared_by_seed(tmp_path, capsys):
    named = []
    for seed in range(3):
        named.append(f"grpo:{seed}:4={trl(tmp_path / f'trl-{seed}', curve('grpo', seed))}")
        named.append(f"mine:{seed}:4={verl(tmp_path / 'verl' / f'run-{seed}.jsonl', curve('mine', seed))}")
    assert main([*named, "--output", str(tmp_path / "out"), "--reference", "grpo"]) == 0
    assert "6 of 6 runs" in capsys.readouterr().out
    lines = list(csv.DictReader((tmp_path / "out" / "compare.csv").open()))
    wanted = {"setting": "mine", "metric": "train/reward", "statistic": "final"}.items()
    (found,) = [line for line in lines if wanted <= line.items()]
    assert (found["num_seeds"], found["num_pairs"]) == ("3", "3")
    wanted = sum(sum(curve("mine", s)[-2:]) - sum(curve("grpo", s)[-2:]) for s in range(3)) / 6
    assert float(found["difference"]) == pytest.approx(wanted, abs=1e-6)
    assert float(found["p_value"]) < 0.01
    assert {"policy/entropy", "val/avg@k"} <= {line["metric"] for line in lines}


def test_a_state_of_trl_keeps_rows_of_one_update_together(tmp_path):
    folder = import_run(ForeignRun("grpo", 3, 4, trl(tmp_path / "trl", curve("grpo", 3))), tmp_path / "out")
    record = read_run(folder)
    assert record.problem is None and [row["step"] for row in record.rows] == list(range(1, UPDATES + 1))
    assert record.series("train/reward")[1] == curve("grpo", 3)
    assert record.rows[9]["eval_reward"] == 0.4 and "train/loss" not in record.rows[9]
    assert {"algorithm": "grpo", "seed": 3, "staleness": 4}.items() <= record.manifest.items()


def test_a_row_with_more_cells_than_names_is_read_without_them(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("step,train/grad_norm\n1,nan\n2,0.6,7\n")
    assert updates_without(log, "train/grad_norm") == [1]


def test_one_log_alone_gets_a_summary_without_what_it_does_not_say(tmp_path, capsys):
    file = tmp_path / "log.jsonl"
    file.write_text("".join(f'{{"step": {n}, "reward": 0.5, "step_time": 2.0}}\n' for n in range(1, 4)))
    assert main([f"grpo:0={file}", "--output", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "after 3 updates in 6.0 s" in shown and "idle" not in shown


def test_the_newest_state_counts_and_one_before_the_end_is_left_out(tmp_path):
    folder = tmp_path / "trl"
    trl(folder, curve("grpo", 0)[:5], checkpoint="checkpoint-5")
    trl(folder, curve("grpo", 0)[:15], checkpoint="checkpoint-15")
    record = read_run(import_run(ForeignRun("grpo", 0, 1, folder), tmp_path / "out"))
    assert len(record.rows) == 15 and "stopped before its max_steps" in record.problem


def test_event_files_are_read(tmp_path):
    writer = SummaryWriter(str(tmp_path / "runs" / "grpo"))
    for step, value in enumerate(curve("grpo", 0), 1):
        writer.add_scalar("train/reward", value, step)
        writer.add_scalar("actor/entropy", 0.25, step)
    writer.close()
    record = read_run(import_run(ForeignRun("grpo", 0, 1, tmp_path / "runs"), tmp_path / "out"))
    assert record.series("train/reward")[1] == pytest.approx(curve("grpo", 0), rel=1e-6)
    assert record.series("policy/entropy") == (list(range(1, UPDATES + 1)), [0.25] * UPDATES)


def test_a_torn_event_file_keeps_what_is_whole(tmp_path):
    writer = SummaryWriter(str(tmp_path))
    for step in range(5):
        writer.add_scalar("reward", 1.0, step)
    writer.close()
    (file,) = tmp_path.glob("*tfevents*")
    file.write_bytes(file.read_bytes()[:-3])
    assert [step for step, _, _ in imported.scalars(file)] == [0, 1, 2, 3]


def test_without_a_package_event_files_are_refused_with_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(imported, "_MESSAGES", ("no_such_package.event_pb2",))
    (tmp_path / "events.out.tfevents.1").write_bytes(b"")
    with pytest.raises(DataError, match="pip install tensorboard"):
        import_run(ForeignRun("grpo", 0, 1, tmp_path), tmp_path / "out")


TABLES = {
    "history.jsonl": '{"_step": 7, "train/global_step": 1, "train/reward": 0.5, "t": "\u2028\u0085"}\n[]\n',
    "history.csv": "_step,train/global_step,train/reward,name\n7,1,0.5,x\n8,,,y\n",
    "chart.csv": '"Step","run-1 - train/reward","run-1 - train/reward__MIN"\n"1","0.5","0.1"\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_wandb_are_read(name, tmp_path):
    (tmp_path / name).write_text(TABLES[name].replace("[]\n", ""))
    rows = read_run(import_run(ForeignRun("grpo", 0, 1, tmp_path / name), tmp_path / "out")).rows
    assert rows[0]["step"] == 1 and rows[0]["train/reward"] == 0.5
    assert not [key for row in rows for key in row if "MIN" in key or key in ("text", "name")]


@pytest.mark.parametrize(("name", "text", "told"), [
    ("log.jsonl", "[1]\n", "is not a log that can be compared"),
    ("log.jsonl", '{"a": 1}\n', "has no update"),
    ("log.jsonl", "", "has no update"),
    ("state.json", "{}", "it has no log_history"),
    ("state.json", "{", "is not a trainer's state"),
    ("chart.csv", '"Step","a - reward","b - reward"\n"1","2","3"\n', "columns of several runs, a, b"),
    ("x.tfevents", "x" * 40, "event file|has no update"),
    ("log.jsonl", '{"step": 1.5, "reward": 1}\n{"step": 1.6, "reward": 2}\n',
     r"step 1\.5 is between two updates"),
])  # fmt: skip
def test_what_is_no_log_is_refused_in_words(name, text, told, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=told):
        import_run(ForeignRun("grpo", 0, 1, tmp_path / name), tmp_path / "out")


def test_a_path_without_one_log_is_refused_in_words(tmp_path, capsys):
    assert main([f"grpo:0={tmp_path}/gone"]) == 2 and "does not exist" in capsys.readouterr().err
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("")
    assert main([f"grpo:0={tmp_path}"]) == 2 and "holds 2 logs" in capsys.readouterr().err


def test_a_folder_that_vanishes_meanwhile_is_passed_over(tmp_path, capsys, monkeypatch):
    (tmp_path / "checkpoint.partial").mkdir()
    scandir = os.scandir

    def vanishing(path):
        if str(path).endswith(".partial"):
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert main([f"grpo:0={tmp_path}"]) == 2 and "holds 0 logs" in capsys.readouterr().err


def test_two_logs_of_one_seed_are_refused(tmp_path, capsys):
    named = [f"grpo:0={trl(tmp_path / name, curve('grpo', 0))}" for name in ("a", "b")]
    assert main([*named, "--output", str(tmp_path / "out")]) == 2
    assert "two logs have the same NAME:SEED" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "found"), [
    ("grpo:0=a/b", ("grpo", 0, 1)), ("my-dapo:12:8=x", ("my-dapo", 12, 8)), ("grpo=x", None),
    ("outputs/a:0=x", None), ("grpo:0:0=x", None), ("wandb:a/b/c", None), ("grpo:-1=x", None),
])  # fmt: skip
def test_a_log_is_named_with_algorithm_and_seed(text, found):
    run = foreign_run(text)
    assert (run and tuple(run[:3])) == found


def test_names_of_other_trainers_become_ours_and_own_ones_are_kept_of_rewards_alone():
    """P-values are adjusted for all that is compared."""
    names = {
        "train/completions/mean_length": "train/response_length", "bapo/clip_high": "bapo/clip_high",
        "val-core/openai/gsm8k/acc/mean@4": "val/openai-gsm8k/avg@4", "eval/reward": "eval_reward",
        "val-core/openai/gsm8k/acc/best@4/mean": "val-core/openai/gsm8k/acc/best@4/mean",
        "train/rewards/format/mean": "rewards/format/mean",
        **dict.fromkeys(("epoch", "timing_s/gen", "perf/mfu/actor", "total_flos")),
    }  # fmt: skip
    assert {name: renamed(name) for name in names} == names


@pytest.mark.parametrize("key", ["global_step", "max_steps"])
@pytest.mark.parametrize("value", ["x", math.nan, [1], {}, 1.5, True])
def test_a_state_with_odd_counts_is_one_sentence(tmp_path, key, value):
    state = {"log_history": [{"step": 1, "reward": 1}], "global_step": 1, "max_steps": 2, key: value}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=rf"is not a trainer's state \({key}: .*; give TRL's output folder"):
        import_run(foreign_run(f"x:0={tmp_path}"), tmp_path / "out")


@pytest.mark.parametrize("name", ["trainer_state.json", "log.jsonl", "log.csv", "events.out.tfevents.1"])
def test_a_link_to_what_is_no_file_of_a_log_is_one_sentence(tmp_path, name):
    (tmp_path / name).symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match=r"Input/output error"):
        import_run(foreign_run(f"x:0={tmp_path / name}"), tmp_path / "out")
