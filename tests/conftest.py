"""Settings that every test shares, set before a library that reads them is imported; processes started by
tests inherit them.
"""

import os
import signal

import hypothesis

for name, value in {
    "OMP_NUM_THREADS": "1",  # the tensors are tiny: a second thread only waits
    "HF_HUB_OFFLINE": "1",  # a test that reaches for the network is wrong, and is to fail at once
    "WANDB_MODE": "offline",
    "MPLBACKEND": "Agg",
    "RAY_USAGE_STATS_ENABLED": "0",
}.items():
    os.environ.setdefault(name, value)

# Under `make test ARGS=...`, a make that a test starts would take itself for a part of that one: it would
# have its ARGS, and say which directory it enters.
for name in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS", "ARGS"):
    os.environ.pop(name, None)

# The same cases in every run, and no time limit per case: a loaded machine must not fail a property.
hypothesis.settings.register_profile("repository", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("repository")

# Tests interrupt processes, and a shell that starts them in the background lets all of them ignore that.
signal.signal(signal.SIGINT, signal.default_int_handler)
