"""Limits vLLM's changes of its process to its own calls, because the trainer shares that process: vLLM uses
the global random generators, replaces functions of torch on a CPU, writes environment variables that children
inherit, freezes the garbage collector, and at its end destroys the default process group.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist

from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.random_states import random_states_kept

PATCHED = ((torch, "set_num_threads"), (torch.accelerator, "synchronize"), (torch.accelerator, "empty_cache"))


@dataclass(eq=False)
class Containment:
    """A context for every call into vLLM: trainer and vLLM each find the process as they left it."""

    environment: Mapping[str, str]  # variables that are set only inside
    eager: bool  # do not compile vLLM's small helpers, which takes a compiler and seconds

    def __post_init__(self) -> None:
        self._environment: dict[str, str | None] = dict(self.environment)
        self._attributes: list[Any] = [getattr(owner, name) for owner, name in PATCHED]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Enters vLLM's view of the process."""
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", FutureWarning)
            stack.enter_context(random_states_kept())
            stack.enter_context(garbage_collector_kept())
            stack.enter_context(self._environment_kept())
            stack.enter_context(self._attributes_kept())
            if self.eager:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield

    @contextmanager
    def _environment_kept(self) -> Iterator[None]:
        before = dict(os.environ)
        os.environ.update({name: value for name, value in self._environment.items() if value is not None})
        try:
            yield
        finally:
            changed = {
                name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)
            }
            self._environment |= {name: os.environ.get(name) for name in changed}
            for name in changed:
                if name in before:
                    os.environ[name] = before[name]
                else:
                    del os.environ[name]

    @contextmanager
    def _attributes_kept(self) -> Iterator[None]:
        before = [getattr(owner, name) for owner, name in PATCHED]
        for (owner, name), value in zip(PATCHED, self._attributes, strict=True):
            setattr(owner, name, value)
        try:
            yield
        finally:
            self._attributes = [getattr(owner, name) for owner, name in PATCHED]
            for (owner, name), value in zip(PATCHED, before, strict=True):
                setattr(owner, name, value)


@contextmanager
def garbage_collector_kept() -> Iterator[None]:
    """Undoes a freeze of the garbage collector, which would keep the trainer's garbage forever."""
    frozen = gc.get_freeze_count()
    try:
        yield
    finally:
        if not frozen and gc.get_freeze_count():
            gc.unfreeze()


@contextmanager
def transformers_classes_kept(eager: bool) -> Iterator[None]:
    """Protects the classes of transformers' models, which vLLM changes to compile them if it has no class for
    a model: the trainer's model would need vLLM from then on.
    """
    from vllm.model_executor.models.transformers.base import Base

    decorate = Base._decorate_cls_for_torch_compile

    def decorate_others(self: Any, cls: type, *given: Any, **named: Any) -> None:
        if eager:
            return
        if any(type(each) is cls for each in gc.get_objects()):
            raise EngineError(
                f"it would change {cls.__name__}, which this process trains; write "
                "rollout.engine.options.enforce_eager=true or rollout=vllm_child"
            )
        decorate(self, cls, *given, **named)

    Base._decorate_cls_for_torch_compile = decorate_others
    try:
        yield
    finally:
        Base._decorate_cls_for_torch_compile = decorate


@contextmanager
def default_group_kept() -> Iterator[None]:
    """Protects the default process group, which vLLM destroys at its end together with its own groups."""
    destroy = dist.destroy_process_group

    def destroy_others(group: dist.ProcessGroup | None = None) -> None:
        if group is not None and group is not dist.group.WORLD:
            destroy(group)

    dist.destroy_process_group = destroy_others
    try:
        yield
    finally:
        dist.destroy_process_group = destroy


@dataclass(eq=False)
class Deadline:
    """Ends the process, with all stacks on stderr, if native code makes no progress."""

    seconds: float  # without progress
    _armed_at: float = field(default=0.0, init=False)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Watches a call."""
        self._arm()
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def progress(self) -> None:
        """Restarts the countdown; cheap enough to be called at every step."""
        if time.monotonic() - self._armed_at > 1:
            self._arm()

    def _arm(self) -> None:
        self._armed_at = time.monotonic()
        faulthandler.dump_traceback_later(self.seconds, exit=True)


@contextmanager
def shared_memory_of_this_run() -> Iterator[None]:
    """Context for the start of vLLM's CPU engine in all ranks: names its shared memory after this run, and
    removes the names when all ranks have mapped it. vLLM names it after the launcher's address, `env://` in
    every run, so that a second run on the machine, or a run after a killed run, could not start.
    """
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    name = [f"bapo-{uuid4().hex}"]
    dist.broadcast_object_list(name)
    arguments = ExecutorWithExternalLauncher._distributed_args

    def named_arguments(executor: Any) -> tuple[str, int, int]:
        _, rank, local_rank = arguments(executor)
        return f"file://{name[0]}", rank, local_rank  # not read: the ranks have met

    ExecutorWithExternalLauncher._distributed_args = named_arguments
    try:
        yield
    finally:
        ExecutorWithExternalLauncher._distributed_args = arguments
        for file in Path("/dev/shm").glob(f"{name[0]}*"):
            file.unlink(missing_ok=True)
