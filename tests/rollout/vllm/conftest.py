"""What the tests with a real vLLM share."""

import psutil
import pytest
from tests.commands import command_line

from bapo_lightning.rollout.vllm.options import VLLMOptions


@pytest.fixture(scope="session")
def options():
    return VLLMOptions(max_model_len=64, dtype="float32", max_num_seqs=64, kv_cache_bytes=1 << 26)


def vital_processes(server: psutil.Process) -> list[psutil.Process]:
    """A server's HTTP process, engine and workers, without Python's own helper, whose death nobody
    notices.
    """
    processes = [server, *server.children(recursive=True)]
    return [process for process in processes if "resource_tracker" not in command_line(process)]
