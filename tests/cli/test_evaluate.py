"""Evaluations of real checkpoints of the tiny world: numbers, resuming, refusals, tables."""

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
from tests.commands import Command, command_line, run_command, train_to_end, wait_until

from bapo_lightning.rollout.vllm import local
from bapo_lightning.system.errors import BapoLightningError, CheckpointError, ConfigError, DataError
from bapo_lightning.tools.commands.eval_table import main as eval_table

ROOT = Path(__file__).resolve().parents[2]
EVALUATE = "bapo_lightning.tools.commands.evaluate"


def test_a_checkpoint_of_a_run_gets_the_numbers_of_its_validation(trained, tmp_path, capsys):
    folder = tmp_path / "evaluation"
    run(f"checkpoint={trained}", "problems_per_set=4", f"run_folder={folder}", "logger=csv")
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    prefix = "val/additions/"
    expected = {name.removeprefix(prefix): last[name] for name in last if name.startswith(prefix)}
    found = results(folder)
    metrics = {name: made["value"] for name, made in found["sets"]["additions"]["metrics"].items()}
    assert metrics == pytest.approx(expected, abs=1e-12)
    assert (found["version"], found["k"], found["sets"]["additions"]["num_problems"]) == (16, 4, 4)
    output = capsys.readouterr().out
    assert "additions: 4 problems; left out: 896 beyond problems_per_set" in output
    assert "update000016 (policy version 16, its digests are right)" in output
    settings = "k=4, rollout.temperature=1.0, scale.max_new_tokens=32, model.dtype=float32"
    assert f"from its run: {settings}, data.prompt=PlainPrompt" in output
    (row,) = csv.DictReader((folder / "csv/metrics.csv").open())
    assert row["step"] == "16"  # loggers get the version of the policy
    assert float(row["eval/additions/avg@4"]) == results_of(folder, "avg@4")


def test_make_evaluates_the_shipped_model_from_the_command_line(tmp_path):
    options = " ".join([*SMALL[1:], f"output_root={tmp_path}"])
    make = ["make", "--dry-run", "eval", f"CKPT={MODEL}", "DATA=additions", f"ARGS={options}"]
    shown = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    _, option, module, *words = shlex.split(shown.splitlines()[-1])
    done = run_command(module, *words, cwd=ROOT)
    assert (option, module) == ("-m", EVALUATE)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "eval").iterdir()
    assert re.fullmatch(r"model-additions-k4-[0-9a-f]{8}", folder.name)
    files = {".lock", "config.yaml", "manifest.json", "samples.jsonl", "results.json"}
    assert {path.name for path in folder.iterdir()} == files
    assert "avg@4, %" in done.stdout and "48 of 48 samples" in done.stdout


def test_a_line_holds_what_a_reader_needs_to_check_the_verdict(whole):
    rows = samples(whole)
    assert [(row["set"], row["sample"]) for row in rows] == [("additions", n) for n in range(4)] * 12
    for row in rows:
        first, second = map(int, row["prompt"].removesuffix("=").split("+"))
        assert row["prompt"].endswith("=") and row["gold"] == str(first + second)
        is_right = row["finish"] == "stop" and row["response"].rpartition(".")[2] == row["gold"]
        assert (row["status"] == "correct") == is_right == (row["value"] == 1.0)
        assert len(row["response"]) <= row["num_tokens"] <= 32
        assert row["finish"] == "stop" or row["num_tokens"] == 32
    manifest = json.loads((whole / "manifest.json").read_text())
    (session,) = manifest["sessions"]
    assert (manifest["status"], session["num_samples"]) == ("finished", 48)
    assert session["num_tokens"] == sum(row["num_tokens"] for row in rows)
    assert session["versions"]["torch"]


@pytest.mark.slow
@pytest.mark.drill
def test_an_evaluation_that_is_killed_ends_as_one_that_was_not(tmp_path):
    settings = [f"checkpoint={MODEL}", *TINY, "problems_per_set=50", "k=8", "cpu_threads=1"]
    settings.append("samples_per_call=4")
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


@pytest.mark.parametrize("bytes_kept", [0, 3000, -1])
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


def test_it_goes_on_with_the_same_settings_and_weights_only(whole, trained):
    for change, words in {
        "k=2": "k=2: .* began with 4",
        "problems_per_set=11": "evaluated.sets.additions.num_problems=11: .* began with 12",
        f"checkpoint={trained}": r"evaluated\.weights=\w{64}: .* began with \w{64}",
    }.items():
        with pytest.raises(ConfigError, match=words):
            run(f"checkpoint={MODEL}", *SMALL, f"run_folder={whole}", change)


@pytest.mark.slow
@pytest.mark.drill
def test_a_child_that_dies_is_replaced_and_nothing_is_lost(whole, tmp_path, capsys):
    options = ["rollout=hf_child", "rollout.engine.cpu_threads=1", "samples_per_call=1"]
    options.append(f"run_folder={tmp_path / 'child'}")
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
    train_to_end(tmp_path / "run", 1, "model/lora=default", "optimizer.optimizer.lr=1e-3")
    run(f"checkpoint={tmp_path / 'run'}", "problems_per_set=4", f"run_folder={tmp_path / 'evaluation'}")
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    for metric in ("avg@4", "response_length"):
        expected = pytest.approx(last[f"val/additions/{metric}"], abs=1e-12)
        assert results_of(tmp_path / "evaluation", metric) == expected


def test_a_corrupt_checkpoint_gives_way_to_the_one_before(trained, tmp_path, capsys):
    copied = Path(shutil.copytree(trained, tmp_path / "run"))
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


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "nothing to evaluate; write CKPT=FOLDER"),
    (["checkpoint=outputs/gone/run", "sets=additions"], "checkpoint=outputs/gone/run does not exist"),
    ([f"checkpoint={ROOT / 'docs'}"], "is neither a run folder .* nor a checkpoint .* nor a model"),
    (["checkpoint=nobody/has-this-model", "sets=additions"], "hf download nobody/has-this-model"),
    ([f"checkpoint={MODEL}", "sets=aime1924"],
     "sets=aime1924: no such problem set; write some of additions, aime24"),
    *(
        (
            [f"checkpoint={MODEL}", f"{name}=sums"],
            f"{name}=sums: problems to evaluate are sets; write sets=sums",
        )
        for name in ("data", "set", "problem_set")
    ),
    ([f"checkpoint={MODEL}"], "no problems to answer; write DATA=NAME,NAME"),
    ([f"checkpoint={MODEL}", *SMALL, "k=1.5"], r"k=1.5 must be a whole number in \[1, 1000000\]"),
    ([f"checkpoint={MODEL}", *SMALL, "k=1000000000"], r"k=1000000000 must be a whole number in \[1,"),
    ([f"checkpoint={MODEL}", *SMALL, "rollout.temperature=-1"], "rollout.temperature=-1 must be at least 0"),
    ([f"checkpoint={MODEL}", *SMALL, "rollout.temperature=0"], "k=4 with rollout.temperature=0: all samples"),
    ([f"checkpoint={MODEL}", *SMALL, "scale.max_prompt_tokens=5"],
     "a prompt has 6 tokens, more than scale.max_prompt_tokens=5"),
    ([f"checkpoint={MODEL}", *SMALL, "scale.max_new_tokens=400"], "make 406 tokens, the model has"),
    ([f"checkpoint={MODEL}", *SMALL, "rollout=vllm"], "rollout=vllm needs vLLM, which is not installed"),
])  # fmt: skip
def test_bad_input_gets_one_clear_error_and_leaves_nothing_behind(tmp_path, monkeypatch, arguments, message):
    monkeypatch.setattr(local, "find_spec", lambda name: None)
    with pytest.raises(BapoLightningError, match=message):
        run(*arguments, *([f"run_folder={tmp_path / 'new'}"] if arguments else []))
    assert not (tmp_path / "new").exists()


def test_an_error_on_the_command_line_is_one_line(tmp_path):
    done = run_command(EVALUATE, "checkpoint=gone", "sets=additions", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr.startswith("error: the configuration has 1 problem:\n  1. checkpoint=gone does not exist")
        and "Traceback" not in done.stderr
    )


@pytest.mark.slow
def test_checkpoints_are_compared_in_one_table(trained, tmp_path, capsys):
    for update in (8, 16):
        run(f"checkpoint={trained / f'checkpoints/update{update:06d}'}", *SMALL, f"output_root={tmp_path}")
    run(f"checkpoint={MODEL}", *SMALL, "name=start", f"output_root={tmp_path}")
    assert eval_table([str(tmp_path / "eval/*"), "--reference", "start"]) == 0
    output = capsys.readouterr().out
    assert "+-: minus start" in output and "12 problems x 4" in output
    rows = list(csv.DictReader((tmp_path / "eval/evaluations.csv").open()))
    means = {row["evaluation"]: float(row["value"]) for row in rows if row["metric"] == "avg@4"}
    assert list(means) == ["run-update000008", "run-update000016", "start"]
    for row in (row for row in rows if row["metric"] == "avg@4" and row["evaluation"] != "start"):
        assert float(row["difference_value"]) == pytest.approx(means[row["evaluation"]] - means["start"])
        assert float(row["difference_low"]) <= float(row["difference_value"]) <= float(row["difference_high"])
    assert "| run-update000016 | 4 |" in (tmp_path / "eval/evaluations.md").read_text()


def test_evaluations_that_cannot_be_compared_are_reported(whole, tmp_path, capsys):
    unfinished = Path(shutil.copytree(whole, tmp_path / "unfinished"))
    content = (whole / "samples.jsonl").read_bytes()
    (unfinished / "samples.jsonl").write_bytes(content[:3000])
    assert eval_table([str(unfinished)]) == 2
    assert "no evaluation is finished" in capsys.readouterr().err
    assert eval_table([str(whole), str(unfinished), "--output", str(tmp_path)]) == 0
    assert "left out" in capsys.readouterr().out
    files = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert files == {"evaluations.csv", "evaluations.md"}
    again = [str(tmp_path / "*"), *map(str, tmp_path.iterdir()), str(whole)]  # as a shell expands it, too
    assert eval_table([*again, "--output", str(tmp_path)]) == 0
    assert eval_table([str(tmp_path / "evaluations.csv")]) == 2
    assert "evaluations.csv'; make one" in capsys.readouterr().err
    assert eval_table([str(whole), "--reference", "nobody"]) == 2
    assert "--reference nobody: nothing finished has this name; it takes model" in capsys.readouterr().err
    assert eval_table([str(tmp_path / "nothing*")]) == 2
    assert "no evaluation is at" in capsys.readouterr().err
