"""Flags of `lightning.Trainer`, stock callbacks and strategies that cannot work in a run, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bapo_lightning.configuration.targets import Target
from bapo_lightning.system.values import FULL, MIXED, PRECISION_ADVICE

LENGTH = "the length of a run is scale.num_rollout_batches rollout batches"
NO_LOOP = "validation is a callback here; write callbacks.validation.every=20"
# Flags that the run sets itself, or that have no effect in its loop: why, and what to write instead.
REFUSED_FLAGS = {
    "strategy": "it is a separate group; write strategy=ddp",
    "logger": "it is a separate group; write logger=csv",
    "callbacks": "it is a separate group; write +callbacks.NAME={_target_: ...}",
    "fast_dev_run": "it switches off callbacks that a run needs; write debug=fast",
    "max_epochs": LENGTH,
    "min_epochs": LENGTH,
    "max_steps": LENGTH,
    "min_steps": LENGTH,
    "limit_train_batches": LENGTH,
    "overfit_batches": "batches are newly sampled; write +data.train.limit=8 to train on few problems",
    "limit_val_batches": "write scale.validation_problems",
    "limit_test_batches": "there is no test loop; write make eval",
    "limit_predict_batches": "there is no prediction loop; write make eval",
    "val_check_interval": NO_LOOP,
    "check_val_every_n_epoch": NO_LOOP,
    "num_sanity_val_steps": NO_LOOP,
    "log_every_n_steps": "every update is logged",
    "enable_checkpointing": "checkpoints that resume to the bit are written by callbacks.checkpoint",
    "accumulate_grad_batches": "an update accumulates micro-batches itself; write scale.micro_batch_tokens",
    "gradient_clip_val": "write optimizer.max_grad_norm",
    "gradient_clip_algorithm": "gradients are clipped by norm; write optimizer.max_grad_norm",
    "inference_mode": "there is no validation loop",
    "use_distributed_sampler": "rank 0 divides the minibatches itself",
    "barebones": "it switches off callbacks that a run needs",
    "plugins": "checkpoints and ranks are the run's own plugins",
    "sync_batchnorm": "no model here has batch normalisation",
    "reload_dataloaders_every_n_epochs": "a run is one pass over one loader",
    "default_root_dir": "write run_folder or output_root",
    "enable_autolog_hparams": "config.yaml holds the configuration",
    "model_registry": "checkpoints are folders; write make export",
}
ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")  # the last is refused with its reason
REFUSED_CALLBACKS = {
    "WeightAveraging": "the engine, checkpoints and exports would not get the averaged weights",
    "EMAWeightAveraging": "the engine, checkpoints and exports would not get the averaged weights",
    "StochasticWeightAveraging": "it needs Lightning's automatic optimisation and epochs",
    "GradientAccumulationScheduler": "an update accumulates its micro-batches itself",
    "BatchSizeFinder": "it needs a batch_size and repeats batches, which are sampled here",
    "LearningRateFinder": "it repeats batches, which are sampled here; write make sweep",
    "ModelPruning": "the engine would get other weights than the trained ones",
    "BackboneFinetuning": "it works by epochs, and a run is one; write model/lora=default",
    "ThroughputMonitor": "tokens per second are logged by callbacks.throughput",
}
REFUSED_STRATEGIES = {
    "FSDPStrategy": "FSDP1 cannot do manual optimisation; write strategy=fsdp, which is FSDP2",
    "DeepSpeedStrategy": "DeepSpeed takes over the optimizer step; write strategy=fsdp",
}


def trainer_problems(trainer: Target) -> Iterator[str]:
    """Yields the flags that cannot work, each with the reason."""
    for flag, value in trainer.node.items():
        if flag in REFUSED_FLAGS and (value is not None or flag == "accumulate_grad_batches"):
            yield f"trainer.{flag}={value} is refused: {REFUSED_FLAGS[flag]}"
    for flag in ("devices", "num_nodes"):
        value = trainer.node.get(flag)
        if type(value) is not int or value < 1:
            yield f"trainer.{flag}={value} must be a whole number of at least 1"
    precision = trainer.node.get("precision", "auto")
    if precision not in ("auto", MIXED, FULL):
        yield f"trainer.precision={precision} {PRECISION_ADVICE}"
    accelerator = trainer.node.get("accelerator", "auto")
    if accelerator not in ACCELERATORS:
        names = ", ".join(ACCELERATORS)
        yield f"trainer.accelerator={accelerator} is none of its values; write one of {names}"


def without_refused(section: str, node: Any) -> Any:
    """Returns the node of a section; the trainer's without the flags that `trainer_problems` judges."""
    if section != "trainer" or not isinstance(node, Mapping):
        return node
    return {key: value for key, value in node.items() if key not in {*REFUSED_FLAGS, "precision"}}


def stock_problems(key: str, node: Target, refused: dict[str, str]) -> Iterator[str]:
    """The reason why a stock class does not work here, if it is one of `refused`."""
    reason = refused.get(node.name.rpartition(".")[2]) if node.name.startswith("lightning.") else None
    if reason is not None:
        yield f"{key}._target_={node.name} is refused: {reason}"
