"""Whether a server's log-probs belong to the weights in a model folder.

    prompts: random tokens, canary texts  --client-->  LogProbs: the server's log-probs
                                                          | layout: which tokens are compared
    weights: the folder in a server's precision, and its rounding, measured
    mixtures: layers of one folder, the rest of another  -> judge -> Verdict -> console

Needs no run of this package: a URL and a folder that transformers reads.
"""
