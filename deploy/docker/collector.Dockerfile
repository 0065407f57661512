# syntax=docker/dockerfile:1
# The collector. Build in the repository's root:
#   docker build -f deploy/docker/collector.Dockerfile -t gpusonde-collector .
# Run with certificates and a configuration:
#   docker run -p 7433:7433 -v gpusonde-store:/var/lib/gpusonde -v /etc/gpusonde:/etc/gpusonde:ro gpusonde-collector \
#       collector --config /etc/gpusonde/collector.toml
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
ARG EXTRAS=collector,push
RUN python -m venv /opt/gpusonde && /opt/gpusonde/bin/pip install --no-cache-dir --no-compile -c constraints.txt ".[${EXTRAS}]"

FROM python:${PYTHON}
# CatBoost and scikit-learn need OpenMP's runtime. Debian keeps its latest version only, so none is named.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/gpusonde /opt/gpusonde
# A user without a name on the host; the store belongs to it.
RUN groupadd --gid 64351 gpusonde \
    && useradd --uid 64351 --gid 64351 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin gpusonde \
    && install -d -o gpusonde -g gpusonde -m 0750 /var/lib/gpusonde
ENV PATH=/opt/gpusonde/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp \
    GPUSONDE_COLLECTOR_STORE_DIRECTORY=/var/lib/gpusonde/store \
    GPUSONDE_COLLECTOR_METRICS_LISTEN=127.0.0.1:9434
USER 64351:64351
VOLUME /var/lib/gpusonde
EXPOSE 7433
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9434/-/healthy', timeout=4)"]
ENTRYPOINT ["gpusonde"]
CMD ["collector"]
