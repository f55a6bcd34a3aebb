"""Model folders of one shape: a trained one, one small step before it, and a wrong one."""

from importlib.resources import files

import pytest
import torch
from tests.tools.probe.completions_server import Served, serving
from transformers import AutoModelForCausalLM, AutoTokenizer

TRAINED = str(files("bapo_lightning").joinpath("tiny_worlds/additions/model"))
OTHER = str(files("bapo_lightning").joinpath("tiny_worlds/sums/model"))


def loaded(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def moved(folder, target, size):
    """Saves a model whose weights differ by so much, relative to each weight's own size."""
    model, draws = loaded(folder), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += size * weight.std().nan_to_num() * torch.randn(weight.shape, generator=draws)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder).save_pretrained(target)
    return str(target)


@pytest.fixture(scope="session")
def old(tmp_path_factory):
    """An older export: half a nat away."""
    return moved(TRAINED, tmp_path_factory.mktemp("old"), 0.2)


@pytest.fixture(scope="session")
def near(tmp_path_factory):
    """The export of one small step before, which rounding to bfloat16 hides."""
    return moved(TRAINED, tmp_path_factory.mktemp("near"), 2e-3)


@pytest.fixture
def served():
    return Served(loaded(TRAINED), AutoTokenizer.from_pretrained(TRAINED))


@pytest.fixture
def url(served):
    with serving(served) as address:
        yield address
