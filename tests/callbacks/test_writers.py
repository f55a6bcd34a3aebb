from types import SimpleNamespace

import torch

from bapo_lightning.callbacks.writers import ConsoleLogger, MetricsWriter


def test_the_console_shows_this_update_and_a_dash_for_what_it_does_not_have(capsys):
    shown = []
    trainer = SimpleNamespace(
        strategy=SimpleNamespace(broadcast=lambda values: values), callback_metrics={}, loggers=[],
        progress_bar_callback=object(), is_global_zero=True, num_training_batches=2,
    )  # fmt: skip
    module = SimpleNamespace(log_dict=lambda values, **options: shown.append(values))
    share = {"bapo/positive_share": torch.tensor(0.4)}
    for index, more in enumerate((share, {"bapo/positive_share": torch.tensor(float("nan"))})):
        outputs = {"metrics": {"train/reward": 0.5, **more}}
        for callback in (MetricsWriter(), ConsoleLogger(every=1)):
            callback.on_train_batch_end(trainer, module, outputs, None, index)
    first, second = capsys.readouterr().out.splitlines()
    assert "reward 0.500" in first and "positive share 0.400" in first
    assert "reward 0.500" in second and "positive share -" in second
    assert abs(shown[0]["positive share"] - 0.4) < 1e-6
    assert (
        shown[1]["positive share"] != shown[1]["positive share"]
    )  # NaN: the bar does not repeat the earlier one
