# docker build -f docker/gpu.Dockerfile -t bapo-lightning:gpu .
# docker run --rm -it --gpus all --ipc host bapo-lightning:gpu make train EXP=bapo_7b
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04
# Triton and torch.compile call compilers while a run is under way, with Python's headers; nvcc, of "devel", is for the extra flash.
RUN apt-get update && apt-get install --no-install-recommends -y gcc g++ git make python3.12 python3.12-dev python3.12-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /bapo-lightning
COPY . .
# TORCH names the build: a build machine has no GPU by which make could choose it. vLLM's build follows torch's.
RUN make setup setup-vllm PYTHON=python3.12 TORCH=torch==2.13.0
CMD ["make", "train"]
