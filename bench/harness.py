"""Trains a harness as it is, mini-swe-agent, by environment=agent, with a tiny model.

    python -m venv VENV && VENV/bin/python -m pip install mini-swe-agent
    python bench/harness.py --python VENV/bin/python [--updates 2]

Each conversation is one `mini` of VENV in an empty folder, with its text-based model class and short prompts.
It must write the word of its task to a file by commands of the shell, and submit. The reward is 1 for the
word in the file and 0.5 for another one, by the command that starts it. Tokens of the model are whole commands, so
that a model of random weights finds some.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from doors import write_model
from measuring import bench_parser
from transformers import AutoTokenizer

from bapo_lightning.system.run_folder.record import read_rollouts, read_run

WORDS = ("left", "right")
ACTION = "```mswea_bash_command\n{}\n```"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
COMMANDS = (*(f"echo {word} > answer" for word in WORDS), SUBMIT)
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{% if m.role == 'assistant' %}<end>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
# Arguments: mini, the word. The answer is in a folder that the agent has for itself.
SCRIPT = """
set -e
cd "$(mktemp -d)"
export MSWEA_GLOBAL_CONFIG_DIR="$PWD/own" MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors MSWEA_SILENT_STARTUP=1
"$1" -y --exit-immediately -m openai/policy --model-class litellm_textbased -o own/trajectory.json -t "$2" \\
  -c mini_textbased.yaml -c agent.system_template=Work. -c 'agent.instance_template=Write {{task}}.' \\
  -c agent.step_limit=3 -c 'model.observation_template=Done {{output.returncode}}.' \\
  -c 'model.format_error_template=One command.' < /dev/null > own.log 2>&1
if grep -qx "$2" answer 2>&-; then echo 1; elif test -s answer; then echo 0.5; else echo 0; fi
"""


def main() -> int:
    parser = bench_parser(__doc__, has_json=False, updates=2)
    parser.add_argument("--python", required=True, help="of an environment with mini-swe-agent")
    options = parser.parse_args()
    mini = Path(options.python).absolute().with_name("mini")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_model(tuple(ACTION.format(command) for command in COMMANDS), place / "model")
        tokenizer = AutoTokenizer.from_pretrained(place / "model")
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(place / "model")
        rows = [{"problem": word, "answer": word} for word in WORDS]
        (place / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (place / "start.sh").write_text(SCRIPT)
        subprocess.run([sys.executable, "-m", "bapo_lightning.cli.train", *overrides(place, mini, options.updates)],
                       check=True)  # fmt: skip
        record = read_run(place / "run")
        for row in read_rollouts(place / "run")[:2]:
            print(f"reward {row['reward']}: " + " | ".join(turn["text"] for turn in row.get("turns", ())))
        names = (
            "train/reward",
            "turns/mean",
            "agent/requests_mean",
            "agent/program_seconds",
            "turns/lost_share",
        )
        for number, update in enumerate(record.rows):
            print(f"update {number}: " + ", ".join(f"{name} {update[name]:.3g}" for name in names))
    return 0 if len(record.rows) == options.updates else 1


def overrides(place: Path, mini: Path, updates: int) -> list[str]:
    return [
        *("experiment=additions", f"model.path={place / 'model'}", f"run_folder={place / 'run'}"),
        *("environment=agent", "data=agent", "reward=environment", "algorithm=grpo", "cpu_threads=1"),
        f"environment.answers.endpoint.command=[sh,{place / 'start.sh'},{mini},'{{task}}']",
        *("problem_set@data.train.tasks=table", "data.train.tasks.name=words", "~data.validation.agent"),
        f"data.train.tasks.path={place / 'tasks.jsonl'}",
        *("regime=on_policy", f"scale.num_rollout_batches={updates}"),
        *(
            "scale.prompts_per_batch=2",
            "scale.group_size=4",
            "environment.max_turns=4",
            "environment.workers=2",
        ),
        *("environment.answers.endpoint.limits.seconds=300", "callbacks.rollout_writer.every=1"),
        *("callbacks.validation.every=0", "callbacks.validation.first=false"),
        *("scale.max_new_tokens=64", "scale.max_prompt_tokens=128", "scale.max_feedback_tokens=192"),
    ]


if __name__ == "__main__":
    sys.exit(main())
