"""Start of a run on a table: from the configuration to the first problems of a batch.

    python bench/start.py [--rows 10000 100000 1000000] [--model models/smollm2-135m-instruct]

For each number of rows a new process writes a table of prompts of about 100 bytes, of which a tenth is
held out, and reads it as a run does. This prints CPU seconds, microseconds of a row, and the memory that it
adds. `--tokenise` measures every prompt in tokens, as where bytes say nothing. A digest of the problems that
are left, in their order, shows that both keep the same ones.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import apart, bench_parser, with_peak, write_json

from bapo_lightning.runs.command import number_type
from bapo_lightning.system.values import Count

ROOT = Path(__file__).resolve().parents[1]
TEXT = "A farmer has {0} apples and gives away {1} of them to 7 friends. How many apples are left? Explain."


def write_table(path: Path, rows: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in range(rows):
            text = TEXT.format(row, row % 97)
            file.write(json.dumps({"problem": text, "answer": str(row - row % 97)}) + "\n")


def measured(rows: int, model: str, limit: int, tokenise: bool) -> dict[str, Any]:
    """Of one start, in this process."""
    from bapo_lightning.configuration.compose import compose_run
    from bapo_lightning.configuration.validate import validate
    from bapo_lightning.data.problems.prompt_lengths import none_fits
    from bapo_lightning.data.problems.stream import ProblemStream, fingerprint
    from bapo_lightning.runs import inputs

    if tokenise:
        inputs.fits_by_bytes = lambda rule, tokenizer, num_embeddings: none_fits
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "problems.jsonl")
        write_table(table, rows)
        os.environ["HF_HOME"] = folder
        overrides = [f"model.path={model}", "data=table", f"data.train.path={table}", "reward=math"]
        overrides += ["experiment=smollm2_arithmetic", "rollout=hf", f"scale.max_prompt_tokens={limit}"]
        config = validate(compose_run([*overrides, f"run_folder={folder}/run"]))
        problems_read: list[Any] = []

        def start() -> None:
            problems_read.append(inputs.read_inputs(config).problems)
            ProblemStream(problems_read[0].train, config.seed).take(16)

        taken, peak = with_peak(start)
    problems = problems_read[0]
    return {
        "cpu_seconds": taken.cpu,
        "mebibytes": peak / 2**20,
        "kept": len(problems.train) + sum(map(len, problems.validation.values())),
        "digest": fingerprint([*problems.train, *problems.overlong])[:16],
    }


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("--rows", type=number_type(Count), nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--model", default=str(ROOT / "models" / "smollm2-135m-instruct"))
    parser.add_argument("--limit", type=number_type(Count), default=512, help="of the tokens of a prompt")
    parser.add_argument("--tokenise", action="store_true", help="every prompt")
    parser.add_argument("--here", action="store_true", help="measure the only number of rows in this process")
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measured(given.rows[0], given.model, given.limit, given.tokenise)))
        return
    if not Path(given.model).is_dir():
        sys.exit(f"{given.model} is not there: make model-smollm2")
    record = {}
    for rows in given.rows:
        arguments = [f"--model={given.model}", f"--limit={given.limit}", *["--tokenise"] * given.tokenise]
        one = record[str(rows)] = apart(__file__, ["--here", f"--rows={rows}", *arguments])
        print(
            f"{rows} rows: {one['cpu_seconds']:.1f} CPU s, {1e6 * one['cpu_seconds'] / rows:.0f} us a row, "
            f"{one['mebibytes']:.0f} MiB, {one['kept']} kept ({one['digest']})",
            flush=True,
        )
    write_json(given.json, record)


if __name__ == "__main__":
    main()
