"""Five pushes through shared memory: `python transfer_worker.py in_process|child|async MODEL RESULT`."""

import asyncio
import json
import os
import sys

PLACEMENT, MODEL, RESULT = sys.argv[1:]
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(PLACEMENT != "in_process")),
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCHDYNAMO_DISABLE": "1",
}

from tests.builders import logprobs as policy_logprobs  # noqa: E402
from tests.builders import random_policy  # noqa: E402
from vllm import LLM, AsyncEngineArgs, SamplingParams  # noqa: E402
from vllm.v1.engine.async_llm import AsyncLLM  # noqa: E402

from bapo_lightning.rollout.engine import MERGED  # noqa: E402
from bapo_lightning.rollout.vllm.options import VLLMOptions  # noqa: E402
from bapo_lightning.rollout.weight_transport import SharedMemoryTransport  # noqa: E402


class Client:
    """An engine of vLLM's Python interface in place of a `ServerClient`; `run` waits for awaitables."""

    def __init__(self, engine, run):
        self.engine, self.run = engine, run

    def call_workers(self, method, *arguments):
        return self.run(self.engine.collective_rpc(method, args=arguments))

    def update_weight_version(self, version):
        self.version = version

    def sample(self, prompt):
        options = {"flat_logprobs": True, "ignore_eos": True, "detokenize": False}
        parameters = SamplingParams(max_tokens=8, seed=1, logprobs=0, **options)
        prompt = {"prompt_token_ids": prompt}
        if isinstance(self.engine, LLM):
            (output,) = self.engine.generate([prompt], parameters, use_tqdm=False)
        else:

            async def last():
                stream = self.engine.generate(prompt, parameters, request_id=str(os.urandom(4)))
                return [output async for output in stream][-1]

            output = self.run(last())
        return list(output.outputs[0].token_ids), list(output.outputs[0].logprobs.logprobs)


def main():
    options = VLLMOptions(max_model_len=64, dtype="float32", max_num_seqs=8, kv_cache_bytes=1 << 26)
    arguments = options.engine_arguments(MODEL, on_cpu=True)
    loop = asyncio.new_event_loop()
    if PLACEMENT == "async":

        async def start():
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

        client = Client(loop.run_until_complete(start()), loop.run_until_complete)
    else:
        client = Client(LLM(**arguments), lambda value: value)
    transport, prompt, differences = SharedMemoryTransport(part_megabytes=0), [7, 3] * 20, []
    for version in range(5):
        policy = random_policy(seed=version)
        if not version:
            transport.connect(client, policy, MERGED)
        transport.send(policy, [client], version, MERGED)
        client.run(client.engine.reset_prefix_cache())
        tokens, logprobs = client.sample(prompt)
        expected = policy_logprobs(policy, prompt, tokens)
        differences.append(max(abs(a - b) for a, b in zip(logprobs, expected, strict=True)))
        assert client.version == str(version)
    with open(RESULT, "w") as file:
        json.dump(differences, file)
    if PLACEMENT == "async":
        client.engine.shutdown()


if __name__ == "__main__":
    main()
