"""Every flag of Lightning's Trainer and every stock callback works or is refused with the reason."""

from inspect import isabstract, signature

import lightning as L
import lightning.pytorch.callbacks as stock
import pytest
from tests.configuration.compositions import found, validated

from bapo_lightning.configuration.trainer_flags import REFUSED_CALLBACKS, REFUSED_FLAGS, REFUSED_STRATEGIES

# Flags that act in a run, each with a value that `tests/runs/test_own_classes.py` trains with.
WORKING_FLAGS = {
    **{"accelerator": "cpu", "devices": 1, "num_nodes": 1, "max_time": "00:01:00:00", "benchmark": False},
    **{"enable_progress_bar": False, "enable_model_summary": True, "deterministic": True},
    **{"profiler": "simple", "detect_anomaly": True, "precision": "bf16-mixed"},
}
# Base classes, and what Lightning makes for other callbacks.
NOT_FOR_USERS = {"Callback", "Checkpoint", "ProgressBar", "BasePredictionWriter", "BaseFinetuning"}
WORKING_CALLBACKS = {
    *("DeviceStatsMonitor", "EarlyStopping", "LambdaCallback", "LearningRateMonitor", "ModelCheckpoint"),
    *("ModelSummary", "OnExceptionCheckpoint", "RichModelSummary", "RichProgressBar", "SpikeDetection"),
    *("TQDMProgressBar", "Timer"),
}


def test_every_flag_of_the_trainer_is_known():
    flags = set(signature(L.Trainer.__init__).parameters) - {"self"}
    assert flags == set(WORKING_FLAGS) | set(REFUSED_FLAGS)


def test_every_stock_callback_is_known():
    names = {name for name in dir(stock) if isinstance(getattr(stock, name), type)}
    assert names - NOT_FOR_USERS == WORKING_CALLBACKS | set(REFUSED_CALLBACKS)
    assert not [name for name in WORKING_CALLBACKS if isabstract(getattr(stock, name))]


@pytest.mark.parametrize("flag", REFUSED_FLAGS)
def test_a_flag_that_cannot_work_is_refused_with_the_reason(flag):
    (text,) = found(f"+trainer.{flag}=1")
    assert text == f"trainer.{flag}=1 is refused: {REFUSED_FLAGS[flag]}"


@pytest.mark.parametrize("name", REFUSED_CALLBACKS)
def test_a_stock_callback_that_cannot_work_is_refused_with_the_reason(name):
    (text,) = found(f"+callbacks.mine={{_target_: lightning.pytorch.callbacks.{name}}}")
    assert text.startswith(f"callbacks.mine._target_=lightning.pytorch.callbacks.{name} is refused: ")


@pytest.mark.parametrize("name", REFUSED_STRATEGIES)
def test_a_strategy_that_cannot_work_is_refused_with_the_reason(name):
    (text,) = found(f"strategy._target_=lightning.pytorch.strategies.{name}")
    assert f"{name} is refused: {REFUSED_STRATEGIES[name]}" in text


def test_a_misspelt_flag_is_answered_with_the_nearest():
    (text,) = found("+trainer.profilr=simple")
    assert text.startswith("trainer.profilr is not an option of lightning.Trainer; did you mean profiler?")


def test_the_configuration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        validated().seed = 3
