# docker build -f docker/cpu.Dockerfile -t bapo-lightning . && docker run --rm -it bapo-lightning make train
FROM python:3.12-slim
RUN apt-get update && apt-get install --no-install-recommends -y gcc g++ git libnuma1 make && rm -rf /var/lib/apt/lists/*
WORKDIR /bapo-lightning
COPY . .
RUN make setup setup-vllm
CMD ["make", "train"]
