"""`make serve` as far as it needs no vLLM; tests/rollout/vllm/test_serve.py has the rest."""

import socket

import pytest

from bapo_lightning.cli.serve import refuse_taken_ports
from bapo_lightning.errors import ConfigError


def test_a_port_that_is_taken_is_named_before_vllm_loads():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"port {port} cannot be used \(Address already in use\); write rollout"
        ):
            refuse_taken_ports([port])
    refuse_taken_ports([port])
