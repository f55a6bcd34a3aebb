"""A server with the completions of OpenAI's API, which scores and samples with a model of transformers."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

VLLM_FIELDS = {"top_k", "min_p", "repetition_penalty", "ignore_eos", "return_token_ids"}


class Served:
    """What a server holds; tests replace its model and set its habits while it runs."""

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self.sampler = None  # model that samples, where a stale prefix cache makes it another one
        self.echoes = True
        self.is_vllm = True  # takes vLLM's fields, and tells numbers of tokens
        self.prompt_temperature = 1.0  # of log-probs of prompts
        self.is_raw = False  # log-probs of sampled tokens are before temperature
        self.known = model.config.vocab_size
        self.context = None  # tokens of a prompt and what follows it
        self.bodies = []

    @torch.no_grad()
    def scores(self, model, ids, temperature):
        logits = model(input_ids=torch.tensor([ids])).logits[0].float() / temperature
        return torch.log_softmax(logits, -1)

    def complete(self, prompt, body):
        ids = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else list(prompt)
        if max(ids) >= self.known:
            raise ValueError(f"Token id {max(ids)} is out of vocabulary")
        if self.context is not None and len(ids) + body["max_tokens"] > self.context:
            raise ValueError(f"This model's maximum context length is {self.context} tokens")
        draws = torch.Generator().manual_seed(body["seed"])
        temperature, sampled, values = body["temperature"], [], []
        for _ in range(body["max_tokens"]):
            model = self.sampler or self.model
            last = self.scores(model, [*ids, *sampled], temperature)[-1]
            sampled.append(int(torch.multinomial(last.exp(), 1, generator=draws)))
            told = self.scores(model, [*ids, *sampled[:-1]], 1.0)[-1] if self.is_raw else last
            values.append(float(told[sampled[-1]]))
        tokens = list(sampled)
        if body.get("echo") and self.echoes:
            own = self.scores(self.model, ids, self.prompt_temperature)[:-1]
            values = [None, *own.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist(), *values]
            tokens = [*ids, *sampled]
        texts = [self.tokenizer.decode([token]) for token in tokens]
        choice = {"logprobs": {"tokens": texts, "token_logprobs": values}, "finish_reason": "length"}
        if self.is_vllm:
            choice |= {"prompt_token_ids": ids, "token_ids": sampled}
        return choice

    def answer(self, body):
        self.bodies.append(body)
        if not self.is_vllm and (extra := VLLM_FIELDS & body.keys()):
            raise ValueError(f"unknown fields {sorted(extra)}")
        return {"choices": [{"index": i} | self.complete(p, body) for i, p in enumerate(body["prompt"])]}


@contextmanager
def serving(served):
    """Gives the address of a server of it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply(200, {"data": [{"id": "policy", "max_model_len": served.context}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                self.reply(200, served.answer(body))
            except ValueError as error:
                self.reply(400, {"error": {"message": str(error)}})

        def reply(self, status, content):
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
