# syntax=docker/dockerfile:1
# The trainer as a custom container, for CPUs (default) or GPUs. Adopters: change the labels; list system packages.
#   make image      = docker build --tag trainer:latest .
#   make image-gpu  = docker build --build-arg LOCK=gpu --tag trainer:latest .
# The Python of BASE_IMAGE must be the one that requirements/gpu.txt was compiled for: scripts/lock.sh. The CPU lock
# takes any of 3.10 to 3.13. For builds that are the same for ever, name the base with its digest:
#   make image BASE_IMAGE=python:3.12-slim-bookworm@sha256:...
ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS build
# default: TensorFlow for CPUs. gpu: the same TensorFlow and the CUDA libraries it was built for.
ARG LOCK=default
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
# Requirements first: a change of code leaves this layer, the big one, as it is. Every file is checked against its
# hash, and sdists are built by the pinned setuptools, so nothing unpinned runs during the build.
COPY requirements/build.txt requirements/${LOCK}.txt /requirements/
RUN pip install --require-hashes --requirement /requirements/build.txt \
    && pip install --require-hashes --no-build-isolation --requirement "/requirements/${LOCK}.txt" \
    && pip check
COPY trainer /app/trainer
COPY configs /app/configs
RUN python -m compileall -q /app/trainer

FROM ${BASE_IMAGE}
# yes: NCCL's plug-in for reduction servers, for GPU images of jobs that have them (configs/jobs/multi_worker_reduction_server.yaml).
ARG REDUCTION_SERVER=no
# hadolint ignore=DL3008
RUN if [ "${REDUCTION_SERVER}" = yes ]; then \
      repository=https://packages.cloud.google.com/apt \
      && apt-get update \
      && apt-get install --yes --no-install-recommends ca-certificates \
      && python3 -c "import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen('${repository}/doc/apt-key.gpg').read())" \
         >/usr/share/keyrings/google-fast-socket.asc \
      && echo "deb [signed-by=/usr/share/keyrings/google-fast-socket.asc] ${repository} google-fast-socket main" \
         >/etc/apt/sources.list.d/google-fast-socket.list \
      && apt-get update \
      && apt-get install --yes --no-install-recommends google-reduction-server \
      && ldconfig \
      && rm -rf /var/lib/apt/lists/*; \
    fi
# Not root: a job needs to write only to its mounted buckets and to /tmp.
RUN useradd --create-home --uid 1000 trainer
# What changes with each commit comes after what doesn't.
ARG BASE_IMAGE
ARG LOCK=default
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="trainer" \
      org.opencontainers.image.description="Keras training on Vertex AI (requirements: ${LOCK})" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
COPY --from=build /opt/venv /opt/venv
COPY --from=build /app /app
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp/matplotlib
USER 1000
# /app is where `trainer` and `configs/` are found; runs/ and other relative outputs belong on a mounted bucket.
WORKDIR /app
ENTRYPOINT ["python", "-m", "trainer.task"]
