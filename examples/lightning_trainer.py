"""BAPO in a Trainer of your own, with Lightning's loggers: `python examples/lightning_trainer.py`."""

from bapo_lightning import BapoModule, RolloutDataModule, configure  # isort: skip - before torch, for its settings

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger


def main() -> None:
    """Trains, then validates the best checkpoint."""
    config = configure(
        *("scale.num_rollout_batches=4", "callbacks.validation.every=16"),
        experiment="additions",
        algorithm="bapo",
        staleness=8,
    )
    module, data = BapoModule(config), RolloutDataModule(config)
    trainer = L.Trainer(
        logger=CSVLogger("logs"),
        callbacks=[
            LearningRateMonitor(),
            ModelCheckpoint(monitor="val/additions/avg@4", mode="max", save_on_train_epoch_end=False),
            EarlyStopping("policy/entropy", mode="max", patience=100, check_on_train_epoch_end=False),
        ],
        gradient_clip_val=None,  # optimizer.max_grad_norm of the configuration clips
    )
    trainer.fit(module, datamodule=data)
    print({name: float(trainer.callback_metrics[name]) for name in ("train/reward", "bapo/positive_share")})

    best = BapoModule.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    print(L.Trainer(logger=False).validate(best, datamodule=RolloutDataModule(config)))


if __name__ == "__main__":
    main()
