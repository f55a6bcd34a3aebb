"""Evaluations of real checkpoints of the tiny world: numbers, resuming, refusals, and the table of
several.
"""

import csv
import json
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest
from tests.cli.evaluations import MODEL, SMALL, TINY, results, results_of, run, samples
from tests.commands import Command, command_line, run_command, train, wait_until

from bapo_lightning.errors import CheckpointError, ConfigError, DataError

ROOT = Path(__file__).resolve().parents[2]


EVALUATE = "bapo_lightning.cli.evaluate"


@pytest.fixture
def copied(trained, tmp_path):
    """The same run, to be spoilt."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_checkpoint_of_a_run_gets_the_numbers_of_its_validation(trained, tmp_path, capsys):
    run(f"checkpoint={trained}", "problems_per_set=4", f"run_folder={tmp_path / 'evaluation'}")
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    expected = {
        name.removeprefix("val/additions/"): value
        for name, value in last.items()
        if name.startswith("val/additions/")
    }
    found = results(tmp_path / "evaluation")
    assert {
        name: made["value"] for name, made in found["sets"]["additions"]["metrics"].items()
    } == pytest.approx(expected, abs=1e-12)
    assert (found["version"], found["k"], found["sets"]["additions"]["num_problems"]) == (16, 4, 4)
    output = capsys.readouterr().out
    assert "additions: 4 problems; left out: 896 beyond problems_per_set" in output
    assert "update000016 (policy version 16, its digests are right)" in output
    assert (
        "from its run: k=4, rollout.temperature=1.0, scale.max_new_tokens=32, model.dtype=float32, "
        "data.prompt=PlainPrompt" in output
    )


def test_make_evaluates_the_shipped_model_from_the_command_line(tmp_path):
    arguments = [
        f"CKPT={MODEL}",
        "DATA=additions",
        f"ARGS={' '.join([*SMALL[1:], f'output_root={tmp_path}'])}",
    ]
    shown = subprocess.run(
        ["make", "--dry-run", "eval", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    _, option, module, *words = shlex.split(shown.splitlines()[-1])
    done = run_command(module, *words, cwd=ROOT)
    assert (option, module) == ("-m", EVALUATE)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "eval").iterdir()
    assert re.fullmatch(r"model-additions-k4-[0-9a-f]{8}", folder.name)
    assert {path.name for path in folder.iterdir()} == {
        ".lock",
        "config.yaml",
        "manifest.json",
        "samples.jsonl",
        "results.json",
    }
    assert "avg@4, %" in done.stdout and "48 of 48 samples" in done.stdout


def test_a_line_holds_what_a_reader_needs_to_check_the_verdict(whole):
    rows = samples(whole)
    assert [(row["set"], row["sample"]) for row in rows] == [
        ("additions", number) for _ in range(12) for number in range(4)
    ]
    for row in rows:
        is_right = row["finish"] == "stop" and row["response"].rpartition(".")[2] == row["gold"]
        assert row["prompt"].endswith("=") and eval_sum(row["prompt"]) == row["gold"]
        assert (row["status"] == "correct") == is_right == (row["value"] == 1.0)
        assert len(row["response"]) <= row["num_tokens"] <= 32 and (
            row["finish"] == "stop" or row["num_tokens"] == 32
        )


def eval_sum(prompt):
    first, second = prompt.removesuffix("=").split("+")
    return str(int(first) + int(second))


def test_the_manifest_tells_how_it_was_made(whole):
    manifest = json.loads((whole / "manifest.json").read_text())
    (session,) = manifest["sessions"]
    assert (manifest["status"], session["num_samples"]) == ("finished", 48)
    assert (
        session["num_tokens"] == sum(row["num_tokens"] for row in samples(whole))
        and session["versions"]["torch"]
    )


@pytest.mark.slow
def test_an_evaluation_that_is_killed_ends_as_one_that_was_not(tmp_path):
    settings = [
        f"checkpoint={MODEL}",
        *TINY,
        "problems_per_set=50",
        "k=8",
        "samples_per_call=4",
        "cpu_threads=1",
    ]
    folder = tmp_path / "killed"
    process = Command(EVALUATE, [*settings, f"run_folder={folder}"])
    wait_until(lambda: len(samples_so_far(folder)) >= 16, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = samples_so_far(folder)
    assert 16 <= len(before) < 400
    with (folder / "samples.jsonl").open("a") as file:
        file.write('{"set": "tiny_wor')
    run(*settings, f"run_folder={folder}")
    run(*settings, f"run_folder={tmp_path / 'calm'}", "samples_per_call=400")
    assert (folder / "samples.jsonl").read_bytes() == (tmp_path / "calm/samples.jsonl").read_bytes()
    assert samples(folder)[: len(before)] == before
    assert results(folder)["sets"] == results(tmp_path / "calm")["sets"]


def samples_so_far(folder):
    file = folder / "samples.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@pytest.mark.parametrize("bytes_kept", [0, 1, 3000, -1])
def test_wherever_the_file_is_torn_it_ends_the_same(whole, tmp_path, bytes_kept):
    folder = Path(shutil.copytree(whole, tmp_path / "torn"))
    content = (whole / "samples.jsonl").read_bytes()
    (folder / "samples.jsonl").write_bytes(content[:bytes_kept])
    run(f"checkpoint={MODEL}", *SMALL, f"run_folder={folder}", "samples_per_call=5")
    assert (folder / "samples.jsonl").read_bytes() == content
    assert len(json.loads((folder / "manifest.json").read_text())["sessions"]) == 2


def test_a_finished_evaluation_is_shown_again_and_samples_nothing(whole, capsys):
    before = (whole / "samples.jsonl").stat().st_mtime_ns
    run(f"checkpoint={MODEL}", *SMALL, f"run_folder={whole}")
    assert "48 of them there already" in (output := capsys.readouterr().out) and "avg@4, %" in output
    assert (whole / "samples.jsonl").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("k=2", "k=2: .* began with 4"),
        ("rollout.temperature=0.5", "rollout.temperature=0.5: .* began with 1"),
        ("seed=1", "seed=1: .* began with 20251021"),
        ("problems_per_set=11", "evaluated.sets.additions.num_problems=11: .* began with 12"),
    ],
)
def test_it_goes_on_with_the_same_settings_only(whole, change, key):
    with pytest.raises(ConfigError, match=key):
        run(f"checkpoint={MODEL}", *SMALL, f"run_folder={whole}", change)


def test_it_does_not_go_on_with_other_weights(whole, trained):
    with pytest.raises(ConfigError, match=r"evaluated\.weights=\w{64}: .* began with \w{64}"):
        run(f"checkpoint={trained}", *SMALL, f"run_folder={whole}")


@pytest.mark.slow
def test_a_child_process_samples_the_same(whole, tmp_path):
    options = ["rollout=hf_child", "rollout.engine.cpu_threads=1", f"run_folder={tmp_path / 'child'}"]
    run(f"checkpoint={MODEL}", *SMALL, *options)
    assert (tmp_path / "child/samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()


@pytest.mark.slow
def test_a_child_that_dies_is_replaced_and_nothing_is_lost(whole, tmp_path, capsys):
    options = [
        "rollout=hf_child",
        "rollout.engine.cpu_threads=1",
        "samples_per_call=1",
        f"run_folder={tmp_path / 'child'}",
    ]
    killer = threading.Thread(target=kill_the_engine_after, args=(tmp_path / "child", 4))
    killer.start()
    run(f"checkpoint={MODEL}", *SMALL, *options)
    killer.join()
    assert "restart 1 of at most 3" in capsys.readouterr().err
    assert (tmp_path / "child/samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()


def kill_the_engine_after(folder, num_samples):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and len(samples_so_far(folder)) < num_samples:
        time.sleep(0.001)
    for child in psutil.Process().children():
        if "bapo_lightning.rollout.child.main" in command_line(child):
            child.kill()


@pytest.mark.slow
def test_a_checkpoint_of_adapters_gets_the_numbers_of_its_validation(tmp_path):
    done = train("model/lora=default", "optimizer.optimizer.lr=1e-3", f"run_folder={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    run(f"checkpoint={tmp_path / 'run'}", "problems_per_set=4", f"run_folder={tmp_path / 'evaluation'}")
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    for metric in ("avg@4", "response_length"):
        assert results_of(tmp_path / "evaluation", metric) == pytest.approx(
            last[f"val/additions/{metric}"], abs=1e-12
        )


def test_greedy_answers_are_the_same_for_every_seed(tmp_path):
    for seed in (1, 2):
        run(
            f"checkpoint={MODEL}",
            *SMALL,
            "k=1",
            "rollout.temperature=0",
            f"seed={seed}",
            f"run_folder={tmp_path / str(seed)}",
        )
    assert samples(tmp_path / "1") == samples(tmp_path / "2")


def test_loggers_get_the_numbers_at_the_version_of_the_policy(trained, tmp_path):
    run(f"checkpoint={trained}", "problems_per_set=4", f"run_folder={tmp_path / 'evaluation'}", "logger=csv")
    (row,) = csv.DictReader((tmp_path / "evaluation/csv/metrics.csv").open())
    assert row["step"] == "16" and float(row["eval/additions/avg@4"]) == results_of(
        tmp_path / "evaluation", "avg@4"
    )


def test_a_corrupt_checkpoint_gives_way_to_the_one_before(copied, tmp_path, capsys):
    spoil(copied / "checkpoints/update000016/trainer.ckpt")
    run(f"checkpoint={copied}", "problems_per_set=4", f"run_folder={tmp_path / 'evaluation'}")
    assert "trainer.ckpt is corrupt: its digest differs" in capsys.readouterr().out
    assert results(tmp_path / "evaluation")["version"] == 8
    with pytest.raises(CheckpointError, match="its digest differs"):
        run(f"checkpoint={copied / 'checkpoints/update000016'}", f"run_folder={tmp_path / 'other'}")
    spoil(copied / "checkpoints/update000008/trainer.ckpt")
    with pytest.raises(CheckpointError, match="no checkpoint is good"):
        run(f"checkpoint={copied}", f"run_folder={tmp_path / 'other'}")


def spoil(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_samples_of_another_problem_are_not_taken_for_ones_own(whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "edited"))
    lines = (folder / "samples.jsonl").read_text().splitlines(keepends=True)
    (folder / "samples.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(CheckpointError, match=r"line 1 of .* is not the sample that belongs there"):
        run(f"checkpoint={MODEL}", *SMALL, f"run_folder={folder}")
    (folder / "samples.jsonl").write_text("no JSON\n")
    with pytest.raises(DataError, match=r"line 1 of .* is corrupt"):
        run(f"checkpoint={MODEL}", *SMALL, f"run_folder={folder}")
