"""The GPU check: its stages at the sizes of a CPU, and what the command does around them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import gpu_check
import pytest
from gpu.checks import Check, Finding, Machine, at_least, at_most, holds, measured

CPU = Machine("cpu")
STAGES = [
    pytest.param(stage, check, id=f"{stage}-{check.name}")
    for stage in ("kernels", "train", "memory", "speed")
    for check in gpu_check.checks_of(stage)
    if not check.gpus
]


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "check"), STAGES)
def test_every_stage_passes_at_the_sizes_of_a_cpu(stage: str, check: Check) -> None:
    found = list(check.run(CPU))
    assert found and not [each for each in found if each.is_bad]
    assert all(each.note == "needs a GPU" for each in found if each.verdict == "skipped")


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

    def in_this_process(stage: str, check: Check, device: str, seconds: float) -> list[Finding]:
        run.append(check.name)
        return list(check.run(Machine(device)))

    found = (Check(fine), Check(wrong), Check(on_gpus, gpus=2), Check(on_gpus, packages=("no_such_package",)))
    monkeypatch.setattr(gpu_check, "checks_of", lambda stage: found)
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
    assert gpu_check.main([*options, "--minutes", "0"]) == 3
    assert "not done in 0 minutes: kernels.fine, kernels.wrong;" in capsys.readouterr().out and calls == []
    gpu_check.main(options)
    gpu_check.main(options)
    assert calls == ["fine", "wrong"]
    gpu_check.main([*options, "--again"])
    assert calls == ["fine", "wrong"] * 2


def test_a_missing_package_is_named(monkeypatch) -> None:
    assert (
        gpu_check.lacking(Check(fine, packages=("no_such_package",)), 8) == "no_such_package is not installed"
    )
    assert gpu_check.lacking(Check(fine, gpus=2), 2) == ""


@pytest.mark.slow
def test_a_check_runs_in_a_process_of_its_own_and_its_end_is_a_failure(tmp_path, monkeypatch) -> None:
    (search,) = (check for check in gpu_check.checks_of("kernels") if check.name == "search")
    found = gpu_check.run_apart("kernels", search, "cpu", 300)
    assert found and [each.verdict for each in found] == ["ok", "measured"]
    (broken,) = gpu_check.run_apart("kernels", Check(fine), "cpu", 300) or ()
    assert broken.is_bad and "ValueError" in broken.note
    assert gpu_check.run_apart("kernels", search, "cpu", 0.01) is None
