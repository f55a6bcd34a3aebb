"""The GPU check: its stages at the sizes of a CPU, and what the command does around them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gpu_check
import pytest
from gpu.checks import Check, Finding, Machine, at_least, at_most, holds, measured
from gpu.kernels import SWEEPS, forward, gradients, operands
from gpu.rehearsal import experiment, rehearsals, rehearse
from tests.bench.faults_of_checks import FAULTS, GPU, Patch, read_rehearsal, rehearsed
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bapo_lightning.modules.token_scores import token_scores
from bapo_lightning.system.errors import TrainingError

CPU = Machine("cpu")
WITHOUT_VLLM = ("machine", "memory", "kernels", "train", "speed")
STAGES = [
    pytest.param(stage, check, id=f"{stage}-{check.name}")
    for stage in WITHOUT_VLLM
    for check in gpu_check.checks_of(stage)
    if not check.gpus and "vllm" not in check.packages
]
# Their numbers are shown, and nothing of them is judged.
MEASURED = {"speed.updates", "speed.generation", "speed.vllm_generation", "speed.beside_prime_rl"}
WITH_VLLM = {"vllm.local_engine"}  # tests/rollout/vllm/test_synced_engine.py plants its faults
ALL = {f"{stage}.{check.name}": check for stage in gpu_check.STAGES for check in gpu_check.checks_of(stage)}


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "check"), STAGES)
def test_every_stage_passes_at_the_sizes_of_a_cpu(stage: str, check: Check) -> None:
    found = list(check.run(CPU))
    assert found and not [each for each in found if each.is_bad]
    assert all(each.note == "needs a GPU" for each in found if each.verdict == "skipped")


@pytest.mark.parametrize(("name", "machine", "plant"), FAULTS)
def test_every_check_finds_its_fault(name: str, machine: Machine, plant: Any, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    try:
        assert any(each.is_bad for each in ALL[name].run(machine))
    except TrainingError:  # the end of a check's process is a failure, too
        assert name == "train.real_shapes"


def test_every_check_that_judges_has_a_fault() -> None:
    assert {name for name, _, _ in FAULTS} | MEASURED | WITH_VLLM == set(ALL)


def test_what_ends_a_run_at_its_start_is_looked_at_first() -> None:
    assert gpu_check.STAGES[:3] == ("machine", "rehearsal", "vllm")


def test_a_rehearsal_shows_its_parts_and_what_the_engine_sampled_from(monkeypatch: Patch) -> None:
    kept = {"mismatch/abs_logp_diff_mean": 0.06, "mismatch/lora_update_kept": 0.1}
    rehearsed(monkeypatch, {"resume": True}, **kept)
    found = list(rehearse("mine", "experiment=bapo_7b"))
    assert [(each.check, each.verdict) for each in found] == [
        ("mine: resume", "ok"),
        ("mine: whole", "ok"),
        ("mine: mismatch/abs_logp_diff_mean", "FAILED"),
        ("mine: mismatch/lora_update_kept", "FAILED"),
    ]


def test_a_rehearsal_that_cannot_begin_says_why(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = rehearse("mine", "experiment=additions", "scale.gruop_size=4")
    assert found.check == "mine: whole" and found.is_bad
    assert found.note.startswith("error: the configuration has at least 1 problem")


def test_an_experiment_that_does_not_fit_fails_where_it_was_asked_for(monkeypatch: Patch) -> None:
    monkeypatch.setattr("gpu.rehearsal.does_not_fit", lambda overrides: "GPUs: 8 needed, 2 found")
    rehearsed(monkeypatch, {"resume": True})
    first, *_ = experiment(GPU, ["EXP=bapo_7b"], is_named=True)
    assert first.is_bad and first.note == "GPUs: 8 needed, 2 found"
    (only,) = experiment(GPU, ["EXP=bapo_7b"], is_named=False)
    assert only.verdict == "skipped" and only.note == first.note


def test_rehearsals_are_of_the_experiments_asked_for_or_of_those_for_the_gpus() -> None:
    def names(like: Sequence[Sequence[str]], num_gpus: int) -> list[str]:
        return [check.name for check in rehearsals(like, num_gpus)]

    assert names([], 0) == names([], 1) == ["bapo_7b_lora"]
    assert names([], 8) == ["bapo_7b_lora", "bapo_7b trainer.devices=8"]
    assert names([["EXP=sums", "seed=1"], ["EXP=own"]], 8) == ["sums seed=1", "own"]


REHEARSED = [
    pytest.param(name, machine, id=f"{name}-{machine.device}")
    for name, check in ALL.items()
    for machine in (CPU, Machine("cuda"))
    # tests/rollout/vllm/test_nccl_transport.py has this one, whose transport imports vLLM.
    if check.title and (name, machine.device) != ("vllm.vLLM's server", "cuda")
]


@pytest.mark.parametrize(("name", "machine"), REHEARSED)
def test_what_is_rehearsed_is_a_configuration(name: str, machine: Machine, monkeypatch: Patch) -> None:
    read_rehearsal(ALL[name], machine, monkeypatch)


def test_what_is_not_a_number_never_passes() -> None:
    assert at_most("a", math.nan, 1.0).is_bad and at_least("a", math.nan, 1.0).is_bad
    assert not at_most("a", 1.0, 1.0).is_bad and not at_least("a", 1.0, 1.0).is_bad
    assert holds("a", False).is_bad and measured("a", math.inf).value is None


def fine(machine: Machine) -> Iterator[Finding]:
    yield at_most("fine", 0.5, 1.0, "nats")


def wrong(machine: Machine) -> Iterator[Finding]:
    yield at_most("wrong", 2.0, 1.0)


def on_gpus(machine: Machine) -> Iterator[Finding]:
    raise AssertionError("there is no GPU")
    yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Checks that were run, of a stage with three."""
    run: list[str] = []

    def in_this_process(stage: str, check: Check, options: Sequence[str], seconds: float) -> list[Finding]:
        run.append(check.name)
        return list(check.run(Machine(options[1])))

    found = (Check(fine), Check(wrong), Check(on_gpus, gpus=2), Check(on_gpus, packages=("no_such_package",)))
    monkeypatch.setattr(gpu_check, "checks_of", lambda stage, like, num_gpus: found)
    monkeypatch.setattr(gpu_check, "run_apart", in_this_process)
    return run


def test_checks_have_verdicts_a_page_and_an_exit_code(calls, tmp_path, capsys) -> None:
    assert gpu_check.main(["--stage", "kernels", "--device", "cpu", "--output", str(tmp_path)]) == 1
    assert calls == ["fine", "wrong"]
    page = (tmp_path / "gpu-check.md").read_text()
    assert "| fine | 0.5 nats | 1 | ok |" in page and "| wrong | 2 | 1 | FAILED |" in page
    assert "needs 2 GPUs, 0 found" in page and "make gpu-check" in page
    assert "1 failed" in capsys.readouterr().out


def test_a_later_call_goes_on_where_time_was_over(calls, tmp_path, capsys) -> None:
    options = ["--stage", "kernels", "--device", "cpu", "--output", str(tmp_path)]
    assert gpu_check.main([*options, "--minutes", "1e-9"]) == 3
    assert "not done in 1e-09 minutes: kernels.fine, kernels.wrong;" in capsys.readouterr().out
    assert calls == []
    gpu_check.main(options)
    gpu_check.main(options)
    assert calls == ["fine", "wrong"]
    gpu_check.main([*options, "--again"])
    assert calls == ["fine", "wrong"] * 2


def test_checks_are_shown_in_the_order_of_the_stages(calls, tmp_path, capsys) -> None:
    options = ["--device", "cpu", "--output", str(tmp_path)]
    for stage in ("speed", "machine", "vllm"):
        gpu_check.main(["--stage", stage, *options])
    page = (tmp_path / "gpu-check.md").read_text()
    assert page.index("## machine") < page.index("## vllm") < page.index("## speed")


def test_an_experiment_is_asked_for_by_its_name(capsys) -> None:
    with pytest.raises(SystemExit):
        gpu_check.main(["--like", "bapo_7b"])
    assert "--like EXP=bapo_7b" in capsys.readouterr().err


def test_what_a_machine_lacks_is_named() -> None:
    lacking = gpu_check.lacking
    assert lacking(Check(fine, ("no_such_package",)), "cuda", 8) == "no_such_package is not installed"
    assert lacking(Check(fine, gpus=2), "cuda", 1) == "needs 2 GPUs, 1 found"
    assert lacking(Check(fine, gpus=2), "cuda", 2) == ""
    assert lacking(Check(fine, gpus=2, on_cpu=True), "cpu", 0) == ""


@pytest.mark.slow
def test_a_check_runs_in_a_process_of_its_own_and_its_end_is_a_failure(tmp_path, monkeypatch) -> None:
    (search,) = (check for check in gpu_check.checks_of("kernels") if check.name == "search")
    device = ["--device", "cpu"]
    found = gpu_check.run_apart("kernels", search, device, 300)
    assert found and [each.verdict for each in found] == ["ok", "measured"]
    (broken,) = gpu_check.run_apart("kernels", Check(fine), device, 300) or ()
    assert broken.is_bad and "StopIteration" in broken.note
    assert gpu_check.run_apart("kernels", search, device, 0.01) is None


class Sweeps(TorchDispatchMode):
    """Counts products, and how many numbers of large tensors other operations read or write."""

    def __init__(self) -> None:
        super().__init__()
        self.products, self.numbers = 0.0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        result, name = func(*args, **options), func.overloadpacket.__name__
        options.pop("out", None)  # is the result
        if name in ("mm", "addmm_"):
            self.products += 1
        elif not func.is_view and name not in ("gather", "scatter_add_", "empty_like", "new_empty", "detach"):
            large = [each for each in tree_leaves((args, options, result)) if isinstance(each, Tensor)]
            self.numbers += sum(each.numel() for each in large if each.numel() >= WORDS)
        return result


TOKENS, WORDS, CHUNK = 128, 4000, 32


@pytest.mark.parametrize(("passes", "work"), [("forward", forward), ("forward and backward", gradients)])
def test_token_scores_make_the_products_and_passes_that_limit_their_time(passes: str, work: Any) -> None:
    given = operands(CPU, TOKENS, 2, WORDS)
    with Sweeps() as counted:
        work(partial(token_scores, chunk_tokens=CHUNK), *given)
    # Of 16 bits on a GPU: copies of products, rounded gradients, and the sum of the head's over 883 tokens.
    more = {"forward": 2.0, "forward and backward": 2 + 2 + 1.5 + 3.5}[passes]
    products, sweeps = SWEEPS[passes]
    assert products - 0.5 < counted.products / (TOKENS / CHUNK) <= products
    assert sweeps - 2 < counted.numbers / (TOKENS * WORDS) + more <= sweeps
