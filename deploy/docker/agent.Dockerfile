# syntax=docker/dockerfile:1
# The agent. Build in the repository's root:
#   docker build -f deploy/docker/agent.Dockerfile -t gpusonde-agent .
# Run on a GPU host with NVIDIA's container toolkit:
#   docker run --gpus all -v gpusonde-spool:/var/lib/gpusonde -e GPUSONDE_AGENT_UPLINK_COLLECTOR=HOST:7433 gpusonde-agent
ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY proto proto
COPY telemetry telemetry
COPY catalog catalog
COPY service service
COPY agent agent
COPY epoch_detect epoch_detect
COPY predictor predictor
COPY simulator simulator
COPY optimizer optimizer
COPY collector collector
COPY cli cli
COPY tests/data/demo_trace.parquet tests/data/
RUN python -m venv /opt/gpusonde && /opt/gpusonde/bin/pip install --no-cache-dir --no-compile -c constraints.txt .

FROM python:${PYTHON}
COPY --from=build /opt/gpusonde /opt/gpusonde
# A user without a name on the host; the spool belongs to it.
RUN groupadd --gid 64350 gpusonde \
    && useradd --uid 64350 --gid 64350 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin gpusonde \
    && install -d -o gpusonde -g gpusonde -m 0750 /var/lib/gpusonde
# NVIDIA's toolkit puts the driver's libraries into the container: all GPUs, and of the driver only NVML and CUDA.
ENV PATH=/opt/gpusonde/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    OPENBLAS_NUM_THREADS=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility,compute \
    GPUSONDE_AGENT_SPOOL_DIRECTORY=/var/lib/gpusonde/spool \
    GPUSONDE_AGENT_METRICS_LISTEN=127.0.0.1:9435
USER 64350:64350
VOLUME /var/lib/gpusonde
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9435/-/healthy', timeout=4)"]
ENTRYPOINT ["gpusonde"]
CMD ["agent"]
