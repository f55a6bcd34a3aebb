"""Every rule between keys, broken on purpose, and what each of them lets pass."""

import pytest
from tests.configuration.compositions import found

# Overrides | a part of the only complaint; "..." is the last of the overrides.
MISTAKES = """
name='c$x_{y' | letters, digits and . _ + - only
algorithm.name='<b>' | letters, digits and . _ + - only
seed=-1 | from 0 to 4294967295
seed='3' | is a text; write it without quotes
callbacks.validation.first='true' | is a text; write it without quotes
name=123 | ... is a number; for a text write "'123'", with both pairs of quotes
reward=functions reward.functions=[true] | is true or false; for a text write "'true'"
run_folder=/dev/null/x | /dev/null is a file
rank_timeout_minutes=0 | ... must be a positive number of minutes

algorithm=grpo algorithm.bounds.low=1.0 | ... is not a lower bound
algorithm=grpo algorithm.bounds.high=0.2 | ... is not an upper bound
algorithm.bounds.low.end=1.1 | ... is not a lower bound
algorithm.bounds.high.start=1.0 | ... is not an upper bound
algorithm.bounds.high.start=4 | ... is beyond algorithm.bounds.high.end=3.0
algorithm.bounds.high.end=inf | must have finite numbers
algorithm.bounds.low.step=0 | ... never reaches the end
algorithm.bounds.target=1.0 | ... is not a share
algorithm.bounds.measure=ratio algorithm.bounds.target=0 | ... is always met
algorithm.bounds.order=sideways | write one of upper_first, lower_first
algorithm.objective.dual_clip=0.5 | ... must be above 1 (3.0 is usual)
algorithm.advantages.scale=var | write one of std, none
+algorithm.objective.typo=1 | algorithm.objective.typo is not an option of
algorithm=spo algorithm.stages.batch_advantages.advantages.keep=1.0 | ... must be in [0, 1)

regime=on_policy regime.minibatches=4 | regime.name=on_policy promises one update on tokens of the current
regime=on_policy regime.epochs=2 | write regime=replay
regime=on_policy regime.partial_tokens=4 | write regime=replay, partial
~regime.minibatches | regime.minibatches is missing; it must be a whole number in [1, 1000000]

scale.group_size=1 | a group of 1 has neither spread nor others
scale.group_size=1 algorithm.advantages.scale=none | one sample is always average
scale.max_new_tokens=many | ... must be a whole number
scale.max_new_tokens=200 | make 208 tokens, the model has 128 positions; write scale.max_new_tokens=120
scale.max_prompt_tokens=0 | ... must be a whole number in [1, 1000000]
scale.max_prompt_tokens=200000 | leaves no room for a response
scale.overlong_buffer=100 | ... must be in 1..scale.max_new_tokens
data.validation.additions.limit=-1 | a whole number of at least 1
data=math reward=math data.filters.overlap.ngram=1000 | ... must be
data=math reward=math data.filters.overlap.min_share=40 | ... must be
reward._target_=.. | ... cannot be imported; write the dotted name of a class or function
algorithm.weighting._target_=../../x | ... cannot be imported; write the dotted name
callbacks.checkpoint=false | has no _target_; write null to leave it out
optimizer.optimizer.betas=[0.9] | ... must be a list of 2 values
trainer.precision=fp16 | is none of its values: gradients underflow in float16
reward._target_=bapo_lightning.rewards.nothing | cannot be imported
reward._target_=tests.rewards.test_functions.right | returns numbers; write reward=functions

correction=truncated_is correction.weights.cap=0 | ... must be positive (2.0 is usual)
correction=masked_is correction.weights.low=1 | ... must be in [0, 1)
correction=masked_is correction.weights.high=0.9 | ... must be above 1
correction=masked_is +correction.weights.cap=2.0 | correction.weights.cap is not an option of
optimizer.optimizer.lr=0 | ... would change nothing
algorithm=bnpo +algorithm.stages.batch_advantages.advantages.lowest=1.5 | highest must be above lowest
algorithm=bnpo ~algorithm.stages.batch_advantages.advantages._target_ | has no _target_; write
rollout=hf_child regime=async ~rollout.engine.make_engine._target_ | has no _target_; write
data/prompt=auto data.prompt.plain._target_=bapo_lightning.system.ranks.launch.leads | cannot be called with 2
data/prompt=auto +data.prompt.plain._partial_=true | multiple values for argument 'bos'); leave out _partial_
data/prompt=auto data.prompt.plain._target_=torch.os.remove | belongs to Python's library
data/prompt=auto data.prompt.plain._target_=os.remove | belongs to Python's library; write a function of yours
data/prompt=auto ~data.prompt.plain._target_ | has no _target_; write
data/prompt=auto data.prompt.chat=null | must be a class or function, {_target_: PACKAGE.NAME}
reward=math_ray ~reward.make_reward._partial_ | makes something that cannot be called without arguments
logger=csv logger.csv.name=/dev/null | ... is not a folder within the run folder; write logger.csv.name=csv
logger=csv logger.csv.version=../other | ... is not a folder within the run folder
logger=csv +logger.csv.flush_logs_every_n_steps=0 | must be a whole number of at least 1
algorithm=vespo algorithm.objective.power_positive=1e9 | must be a number in [0, 10000]
algorithm=asymre algorithm.advantages.shift=-1e30 | must be a number in [-10000, 10000]
+trainer.accumulate_grad_batches=null | trainer.accumulate_grad_batches=None is refused
~trainer.devices | trainer.devices=None must be a whole number
optimizer.optimizer.lr=inf | ... must be finite
optimizer.optimizer.betas=[0.9,1.0] | optimizer.optimizer is refused by torch.optim.AdamW: Invalid beta
optimizer.scheduler.warmup_updates=inf | a whole number of at least 0

regime.minibatches=5 | ... does not divide scale.prompts_per_batch=64
regime.epochs=0 | ... must be a whole number in [1, 1000000]
regime.max_new_tokens=1 | a copy, for the age bound, of scale.max_new_tokens=32
regime=async regime.max_age=2 | write regime.max_age=3 or fewer updates
regime=async regime.max_age=null | one rollout batch ahead is regime.max_age=7
regime=async regime.reuse_share=0.5 regime.max_reuses=1 | admission cannot know how old a group will get
regime=async rollout=vllm | write rollout=vllm_child or rollout=vllm_server
regime=async regime.stale_action=mask | masking them would be evicting it
regime=async regime.wait_warning_seconds=0 | must be a positive number of seconds
regime=windowed_fifo regime.window=200 | write regime.window=129, or regime.max_age=19 or more
regime=replay regime.window=4 | without regime.async_generation
regime=replay regime.batches_in_flight=2 | without regime.async_generation has no effect
regime=replay regime.max_segments=2 | without regime.partial_tokens has no effect
regime=reuse regime.reuse_share=1.0 | must be a number in [0, 1)
regime=reuse regime.reuse_share=0.001 | of scale.prompts_per_batch=64 groups is none
regime=reuse regime.max_reuses=0 | reuses nothing; write regime.max_reuses=1
regime=reuse regime.max_age=6 | write regime.max_age=7 at least
regime=replay regime.max_reuses=1 | ... without regime.reuse_share has no effect

model.path=/nowhere/at/all | ... does not exist
model.dtype=float16 | ... cannot be trained in (gradients underflow in float16); write one of float32
model.attention=fast | ... is none of its values; write one of sdpa, flash_attention_2, flex_attention
model.packing=dense | ... is none of its values; write one of none, padding_free
model.liger=maybe | ... must be true, false or auto
model.head=fast | ... is none of its values; write one of own, liger, auto
+model.rank=8 | model.rank is not an option of model; it takes activation_checkpointing
model/lora=default model.lora.target_modules=[] | ... must be all-linear, or names of linear layers
model/lora=default model.lora.target_modules=[q_proj,lm_head] | lm_head cannot be adapted
model/lora=default +model.lora.dropout=0.1 | dropout is not an option of model.lora; it takes alpha, rank
model.lora=16 | ... must be a mapping, or null

rollout.temperature=0 | ...: training samples must come from a distribution
rollout.top_p=1.5 | ... must be
rollout.top_k=-1 | ... must be
experiment=bapo_7b rollout.top_p=0.9 | training needs all tokens that could have been sampled, at each place
experiment=bapo_7b algorithm=score_centering | write algorithm.objective.head=32, or any number up to 1024
rollout.engine.dtype=int8 | ... is none of its values; write one of float32, bfloat16, float16
rollout=hf_child rollout.engine.cpu_affinity=[0,99999] | this machine has no core 99999
rollout=hf_child rollout.engine.cpu_affinity=all | cpu_affinity=all must be a list
rollout=vllm_child +rollout.engine.make_engine.rows=1 | rollout.engine.make_engine.rows is not an option of
rollout=vllm_server rollout.engine.urls=[localhost] | rollout.engine.urls: localhost is not a URL
rollout=vllm_server rollout.engine.cpu_threads=two | ... must be a whole number from 1 to
rollout=vllm_server rollout.engine.options.gpu_memory_utilization=40 | is a share of the GPU's memory
rollout=vllm rollout.temperature=5 | ...: this rollout.engine samples at 0.01 to 2; write
rollout=vllm_child rollout.temperature=0.005 | ...: this rollout.engine samples at 0.01 to 2; write
rollout=vllm_server rollout.temperature=2.5 | ...: this rollout.engine samples at 0.01 to 2; write
rollout=ray_vllm rollout.temperature=2.5 | ...: this rollout.engine samples at 0.01 to 2; write
rollout=vllm rollout.engine.options.max_model_len=20 | ...: a prompt of 8 tokens, a response of 32 and
rollout=ray_vllm rollout.engine.make_engine.options.max_model_len=20 | need 40; leave it out, or write 40
rollout=vllm rollout.weight_sync.probe_tokens=100 | make 104 tokens, and vLLM is started for 48
rollout=vllm +rollout.engine.options.extra.max_logprobs=5 | ...: a run starts vLLM with max_logprobs=-1; leave
rollout=vllm_child +rollout.engine.make_engine.options.extra.logprobs_mode=raw_logprobs | a run starts vLLM
rollout=vllm_server +rollout.engine.options.extra.dtype=float32 | write rollout.engine.options.dtype

trainer.devices=4 | strategy=single with ... and trainer.num_nodes=1: one process has one device
strategy=ddp trainer.num_nodes=2 | ...: a run starts ranks on its own machine only; start it on every node by
strategy=ddp trainer.devices=2 rollout=vllm_server rollout.placement=each | each of 2 ranks would have servers
strategy=fsdp rollout.weight_sync.tolerance=1e-3 | tolerance=0.001: the trainer's rounding alone
trainer.precision=16-mixed | ... is none of its values: gradients underflow in float16
model.dtype=bfloat16 rollout.weight_sync.tolerance=1e-3 | tolerance=null, which follows the precision
+strategy.zero=1 | strategies.single_device; it takes none

callbacks.checkpoint.minutes=soon | ... must be a positive number of minutes, at most 2000000, or null
callbacks.watchdog.minutes=-1 | ... must be a number of minutes
callbacks.alarms.mismatch.above=0 | ...: no two computations agree
callbacks.alarms.mismatch.above=low | ... must be a number, or null
callbacks.alarms.entropy.above=nan | ... must be a number, or null
callbacks.alarms.mismatch.action=shout | ... is none of its values; write one of warn, stop, off
callbacks.alarms.mismatch.above=null | no threshold; write one, or callbacks.alarms.mismatch.action=off
callbacks.alarms.entropy.below=4 | ... is not below callbacks.alarms.entropy.above=4.0
callbacks.alarms.gradient.spike.factor=1 | ... must be a number above 1
callbacks.alarms.gradient.spike=20 | ... must be e.g. {factor: 50, window: 50}, or null
+callbacks.alarms.gradient.spike.size=2 | size is not an option of callbacks.alarms.gradient.spike
+callbacks.alarms.entropy.belwo=2 | belwo is not an option of an alarm; did you mean below?
+callbacks.alarms.mine={metric:train/loss,spike:{window:9}} | mine.spike.factor is missing; it must
+callbacks.alarms.mine={below:0.1} | callbacks.alarms.mine.metric is missing; it must be text
+callbacks.alarms.mine=0.1 | ... is not an alarm; write e.g. {metric: train/reward, below: 0.1}
callbacks.alarms=3 | ... must map names to alarms
"""
# Two rules may complain.
AMONG_OTHERS = """
model.attention=flex_attention model.compile=true | torch cannot compile layers around flex attention
model.attention=flash_attention_2 | ... computes in 16 bits, the update in float32
model.attention=kernels-community/flash-attn2 | ... computes in 16 bits, the update in float32
model.attention=varlen model.packing=padding_free | computes in 16 bits, the update in float32
model.liger=true model.activation_checkpointing=selective | writes into results of products, which
model.head=liger trainer.precision=32-true | model.head=liger multiplies bfloat16 factors, the update
model.head=liger rollout.top_k=8 | of this run needs log-probs of other tokens as well; write model.head=own
model.attention=varlen model.packing=none | takes rows without padding; write model.packing=padding_free
trainer.accelerator=cpu model.attention=kernels-community/flash-attn2 | needs a GPU, and this machine
trainer.accelerator=cpu model.attention=flash_attention_2 | needs a GPU, and this machine offers none to
trainer.accelerator=cpu model.attention=flex_attention | needs a GPU, and this machine offers none to
trainer.accelerator=cpu model.head=liger | ... needs a GPU, and this machine offers none
trainer.accelerator=cpu model.liger=true | ... needs a GPU, and this machine offers none
rollout=vllm_server rollout.engine.gpus=['4,5','6,7'] | the GPUs of 2 servers, rollout.engine.num_servers=1
rollout=vllm_server +rollout.engine.options.max_sequences=4 | max_sequences is not an option of
scale.prompts_per_batch=1000000 regime.minibatches=7 | does not divide scale.prompts_per_batch=1000000
scale.prompts_per_batch=1000000 regime.minibatches=999983 | does not divide scale.prompts_per_batch=1000000
"""
ACCEPTED = """
regime=async regime.partial_tokens=8
regime=windowed_fifo regime.partial_tokens=8
regime=async regime.epochs=2 regime.max_age=15
regime=async regime.minibatches=1 regime.max_age=0
regime=partial regime.reuse_share=0.5 regime.max_reuses=1 regime.max_age=30
regime=partial regime.stale_action=mask regime.max_age=7
model/lora=default model.activation_checkpointing=true
model.packing=padding_free model.activation_checkpointing=true
model.attention=sdpa model.activation_checkpointing=true
model.dtype=bfloat16 rollout.weight_sync.tolerance=0.2
rollout=vllm_child rollout.engine.make_engine.options.tensor_parallel_size=2
callbacks.alarms.entropy.action=stop callbacks.alarms.entropy.below=0.05
callbacks.alarms.entropy.action=off callbacks.alarms.entropy.below=null callbacks.alarms.entropy.above=null
+callbacks.alarms.mine={metric:val/additions/avg@4,below:0.1,patience:2,action:stop}
+callbacks.alarms.mine={metric:train/loss,spike:{factor:3}}
~callbacks.alarms.gradient
callbacks.watchdog.minutes=0.5
algorithm=spo scale.group_size=1
algorithm=psr scale.group_size=1
algorithm=reinforce_pp scale.group_size=1
"""


def rows(table):
    found = []
    for line in filter(None, table.splitlines()):
        overrides, _, words = line.partition(" | ")
        complaint = words.replace("...", overrides.split()[-1].lstrip("+"))
        found.append(pytest.param(overrides.split(), complaint, id=overrides))
    return found


@pytest.mark.parametrize(("overrides", "complaint"), rows(MISTAKES))
def test_one_mistake_gives_one_complaint_that_names_it(overrides, complaint):
    (text,) = found(*overrides)
    assert complaint in text


@pytest.mark.parametrize(("overrides", "complaint"), rows(AMONG_OTHERS))
def test_a_mistake_is_named_among_others(overrides, complaint):
    assert any(complaint in text for text in found(*overrides))


@pytest.mark.parametrize("overrides", ACCEPTED.strip().splitlines())
def test_what_goes_together_is_accepted(overrides):
    assert found(*overrides.split()) == []


@pytest.mark.parametrize("algorithm", ["rloo", "maxrl", "asymre", "reinforce_pp_baseline"])
def test_advantages_that_compare_answers_need_several(algorithm):
    (complaint,) = found(f"algorithm={algorithm}", "scale.group_size=1")
    assert complaint.startswith("scale.group_size=1 is refused by the advantages: a group of 1 ")
    assert complaint.endswith("write scale.group_size=8")


def test_vllm_in_the_process_of_one_rank_takes_no_gpu_that_the_trainer_was_not_given():
    (complaint,) = found("rollout=vllm", "rollout.engine.options.tensor_parallel_size=2")
    assert "tensor_parallel_size=2 does not divide 1 rank, whose GPUs vLLM shares" in complaint


@pytest.mark.parametrize("rollout", ["vllm", "vllm_child", "vllm_server"])
def test_room_for_adapters_is_that_of_the_policys(rollout):
    inner = "rollout.engine.make_engine" if rollout == "vllm_child" else "rollout.engine"
    lora, rank = (f"rollout={rollout}", "model/lora=default"), f"{inner}.options.lora_rank="
    assert found(*lora) == found(*lora, f"{rank}null") == []
    (complaint,) = found(f"rollout={rollout}", f"{rank}8")
    assert "lora_rank=8 with no model.lora" in complaint
    (complaint,) = found(*lora, f"{rank}8")
    assert "lora_rank=8 with model.lora.rank=16" in complaint
