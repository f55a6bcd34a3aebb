"""Trains harnesses as they are by environment=agent, with a tiny model: mini-swe-agent, or verifiers 0.4.

    python -m venv VENV && VENV/bin/python -m pip install mini-swe-agent verifiers==0.4.0 uv
    python bench/harness.py mini-swe-agent --python VENV/bin/python [--updates 2]
    python bench/harness.py vf_words vf_guess --python VENV/bin/python

A conversation is one `mini` of VENV in an empty folder, with its text-based model class and short prompts. It
must write the word of its task to a file by commands of the shell, and submit; the reward is 1 for that word
and 0.5 for another one. Or it is an episode of verifiers, of the environment in `vf_words.py` or
`vf_guess.py` with the harness `null`, which uv prepares. Tokens of the model are whole commands and words, so
that a model of random weights finds some.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from doors import write_model
from measuring import bench_parser
from transformers import AutoTokenizer

from bapo_lightning.extras.agent import verifiers_episode
from bapo_lightning.system.run_folder.record import read_rollouts, read_run

HERE, MINI = Path(__file__).parent, "mini-swe-agent"
WORDS = ("left", "right")
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
COMMANDS = (*(f"echo {word} > answer" for word in WORDS), SUBMIT)
TOKENS = {MINI: tuple(f"```mswea_bash_command\n{command}\n```" for command in COMMANDS)}
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{% if m.role == 'assistant' %}<end>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
# Arguments: mini, the word. Each agent has a folder.
SCRIPT = """
set -e
cd "$(mktemp -d -p "$(dirname "$0")")"
export MSWEA_GLOBAL_CONFIG_DIR="$PWD/own" MSWEA_CONFIGURED=true MSWEA_SILENT_STARTUP=1
export MSWEA_COST_TRACKING=ignore_errors
"$1" -y --exit-immediately -m openai/policy --model-class litellm_textbased -o own/trajectory.json -t "$2" \\
  -c mini_textbased.yaml -c agent.system_template=Work. -c 'agent.instance_template=Write {{task}}.' \\
  -c agent.step_limit=3 -c 'model.observation_template=Done {{output.returncode}}.' \\
  -c 'model.format_error_template=One command.' < /dev/null > own.log 2>&1
if grep -qxs "$2" answer; then echo 1; elif test -s answer; then echo 0.5; else echo 0; fi
"""
SETTINGS = (
    *("experiment=additions", "environment=agent", "data=agent", "reward=environment", "algorithm=grpo"),
    *("problem_set@data.train.tasks=table", "data.train.tasks.name=words", "~data.validation.agent"),
    *("regime=on_policy", "scale.prompts_per_batch=2", "scale.group_size=2", "cpu_threads=1"),
    *("environment.answers.edits=branch", "environment.max_turns=4", "environment.workers=2"),
    *("environment.answers.endpoint.limits.seconds=300", "callbacks.rollout_writer.every=1"),
    *("callbacks.validation.every=0", "callbacks.validation.first=false"),
    *("scale.max_new_tokens=192", "scale.max_prompt_tokens=128", "scale.max_feedback_tokens=160"),
)
METRICS = (
    "train/reward",
    "agent/requests_mean",
    "agent/branches_mean",
    "agent/program_seconds",
    "turns/lost_share",
)
# Of the variables of this process, those that uv needs; the endpoint's programs get few.
PASSED = ("SSL_CERT_FILE", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_FIND_LINKS")


def main() -> int:
    parser = bench_parser(__doc__, has_json=False, updates=2)
    parser.add_argument("harness", nargs="+", choices=(MINI, "vf_words", "vf_guess"))
    parser.add_argument("--python", required=True, help="of an environment with the harness")
    options = parser.parse_args()
    python, failed = Path(options.python).absolute(), 0
    for harness in options.harness:
        with tempfile.TemporaryDirectory() as folder:
            failed += trained(harness, python, options.updates, Path(folder)) != options.updates
    return 1 if failed else 0


def trained(harness: str, python: Path, updates: int, place: Path) -> int:
    """Trains, and prints a conversation and metrics; returns the number of updates."""
    write_model(TOKENS.get(harness, WORDS), place / "model")
    tokenizer = AutoTokenizer.from_pretrained(place / "model")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(place / "model")
    tasks = WORDS if harness == MINI else range(len(WORDS))
    rows = [{"problem": str(task), "answer": word} for task, word in zip(tasks, WORDS, strict=True)]
    (place / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = {"model.path": place / "model", "run_folder": place / "run"}
    places |= {"data.train.tasks.path": place / "tasks.jsonl"}
    chosen = [*SETTINGS, *(f"{key}={value}" for key, value in places.items())]
    chosen += [f"scale.num_rollout_batches={updates}", *program(harness, python, place)]
    subprocess.run([sys.executable, "-m", "bapo_lightning.cli.train", *chosen], check=True)
    updates_run = read_run(place / "run").rows
    print(f"{harness}:")
    for number, update in enumerate(updates_run):
        print(f"  update {number + 1}: " + ", ".join(f"{name} {update[name]:.3g}" for name in METRICS))
    best = max(read_rollouts(place / "run"), key=lambda row: row["reward"])
    texts = " | ".join(turn["text"] for turn in best.get("turns", ()))
    print(f"  reward {best['reward']}: {texts!r}", flush=True)
    return len(updates_run)


def program(harness: str, python: Path, place: Path) -> list[str]:
    """Overrides that name the program."""
    if harness == MINI:
        (place / "start.sh").write_text(SCRIPT)
        command = ["sh", place / "start.sh", python.with_name("mini"), "{task}"]
        passed = {}
    else:
        player = "agent" if harness == "vf_words" else "player"
        seat = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
        config = json.dumps({"taskset": {"id": harness}, player: seat})
        command = [python, verifiers_episode.__file__, config]
        passed = {name: os.environ[name] for name in PASSED if name in os.environ}
        passed |= {"PYTHONPATH": str(HERE), "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    words = ",".join(quoted(str(word)) for word in command)
    variables = [f"+environment.answers.endpoint.variables.{name}={quoted(passed[name])}" for name in passed]
    return [f"environment.answers.endpoint.command=[{words}]", *variables]


def quoted(text: str) -> str:
    """Text as a value of Hydra's command line."""
    return "'" + text.replace("'", "\\'") + "'"


if __name__ == "__main__":
    sys.exit(main())
