"""What both peers' scripts share: a job in, gradients out. Needs nothing but torch.

    zoo/peers.py -- job.pt --> trl_answers.py or verl_answers.py -- answers.pt --> zoo/peers.py

A job has `tables`, each of padded columns of B responses of up to T tokens, [B, T], and of P groups of G
`rewards` and `lengths`, [P, G], all float64; and `cases`, each a dict with `name`, `kind` and the peer's own
`options`. What is answered to a case depends on its kind:

    loss       {number of micro-batches: d loss / d log-prob, [B, T]}, gradients added up as its trainer does
    entropy    the same, d loss / d entropy
    factor     weights of tokens, [B, T]
    advantage  [P, G]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Table = dict[str, Tensor]
# (columns of a micro-batch, options, number of micro-batches, columns of the whole batch) -> its loss
Loss = Callable[[Table, dict[str, Any], int, Table], Tensor]


def gradient(loss: Loss, table: Table, case: dict[str, Any], parts: int) -> Tensor:
    """Returns the gradient of the losses of equal micro-batches, added up, [B, T]."""
    leaf = "entropy" if case["kind"] == "entropy" else "logp"
    whole = {**table, leaf: table[leaf].clone().requires_grad_()}
    size = len(table["mask"]) // parts
    for first in range(0, len(table["mask"]), size):
        part = {name: column[first : first + size] for name, column in whole.items()}
        loss(part, case["options"], parts, table).backward()
    return whole[leaf].grad * table["mask"]


def answer(version: str, loss: Loss, others: dict[str, Callable[[Table, dict[str, Any]], Tensor]]) -> None:
    """Answers the job of the first argument in the file of the second."""
    torch.set_num_threads(1)
    job = torch.load(sys.argv[1])

    def found(table: Table, case: dict[str, Any]) -> Tensor | dict[int, Tensor]:
        if case["kind"] in others:
            return others[case["kind"]](table, case["options"])
        return {parts: gradient(loss, table, case, parts) for parts in job["parts"]}

    answers = {case["name"]: [found(table, case) for table in job["tables"]] for case in job["cases"]}
    torch.save({"version": version, "answers": answers}, sys.argv[2])
