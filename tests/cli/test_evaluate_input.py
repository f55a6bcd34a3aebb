"""Input that an evaluation cannot use."""

from pathlib import Path

import pytest
from tests.cli.evaluations import MODEL, SMALL, run
from tests.commands import run_command

from bapo_lightning.errors import BapoLightningError
from bapo_lightning.rollout.vllm import local

ROOT = Path(__file__).resolve().parents[2]
EVALUATE = "bapo_lightning.cli.evaluate"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to evaluate; write CKPT=FOLDER"),
        (["checkpoint="], "nothing to evaluate; write CKPT=FOLDER"),
        (["checkpoint=outputs/gone/run", "sets=additions"], "checkpoint=outputs/gone/run does not exist"),
        ([f"checkpoint={ROOT / 'docs'}"], "is neither a run folder .* nor a checkpoint .* nor a model"),
        (["checkpoint=nobody/has-this-model", "sets=additions"], "hf download nobody/has-this-model"),
        (
            [f"checkpoint={MODEL}", "sets=aime1924"],
            "sets=aime1924: no such problem set; write some of additions, aime24",
        ),
        ([f"checkpoint={MODEL}"], "no problems to answer; write DATA=NAME,NAME"),
        ([f"checkpoint={MODEL}", *SMALL, "k=0"], "k=0 must be a whole number of at least 1"),
        ([f"checkpoint={MODEL}", *SMALL, "k=1.5"], "k=1.5 must be a whole number of at least 1"),
        ([f"checkpoint={MODEL}", *SMALL, "problems_per_set=0"], "problems_per_set=0 must be a whole number"),
        ([f"checkpoint={MODEL}", *SMALL, "samples_per_call=0"], "samples_per_call=0 must be a whole number"),
        (
            [f"checkpoint={MODEL}", *SMALL, "rollout.temperature=-1"],
            "rollout.temperature=-1 must be at least 0",
        ),
        (
            [f"checkpoint={MODEL}", *SMALL, "rollout.temperature=0"],
            "k=4 with rollout.temperature=0: all samples",
        ),
        ([f"checkpoint={MODEL}", *SMALL, "rollout.top_p=0"], "rollout.top_p=0 is a share of probability"),
        (
            [f"checkpoint={MODEL}", *SMALL, "scale.max_prompt_tokens=5"],
            "a prompt has 6 tokens, more than scale.max_prompt_tokens=5",
        ),
        ([f"checkpoint={MODEL}", *SMALL, "scale.max_new_tokens=400"], "make 406 tokens, the model has"),
        ([f"checkpoint={MODEL}", *SMALL, "rollout=vllm"], "rollout=vllm needs vLLM, which is not installed"),
    ],
)
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
