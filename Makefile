# The commands of this project: `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules
# Targets share one environment, which two at a time would spoil.
.NOTPARALLEL:

# Yours to set: make train CONFIG=configs/mine.yaml ARGS="--epochs=1 --learning_rate=0.003"
PYTHON ?=
CONFIG ?= configs/flights.yaml
ARGS ?=
# How often make repeat runs its tests.
TIMES ?= 20
IMAGE ?= trainer:latest
# What the images are built with and on: podman does as well; BASE_IMAGE=python:3.12-slim-bookworm@sha256:... pins it.
DOCKER ?= docker
BASE_IMAGE ?= python:3.12-slim-bookworm

VENV := .venv
PY := $(VENV)/bin/python
# Pythons that the locks were made for, best first.
PYTHONS := 3.11 3.12 3.13 3.10
# The newest prebuilt containers, for training and for predictions.
TF217 := .venv-tf217
SERVING := .venv-serving
# The only TensorFlow in which the reader of tensorflow-io works.
TFIO := .venv-tfio
CODE := trainer tests scripts benchmarks setup.py

.PHONY: help
help:  ## list these targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

.PHONY: venv venv-run venv-dev venv-tf217 venv-serving venv-tfio
venv: venv-dev  ## make .venv with everything that train, test and lint need

venv-run:
	@PYTHON_STRICT=1 PYTHON="$(PYTHON)" scripts/venv.sh $(VENV) "$(PYTHONS)" requirements/default.txt requirements/data.txt

venv-dev: venv-run
	@scripts/venv.sh $(VENV) "$(PYTHONS)" requirements/dev.txt

venv-tf217:
	@scripts/venv.sh $(TF217) "3.10" requirements/tf217.txt requirements/data.txt

venv-serving:
	@scripts/venv.sh $(SERVING) "3.10 3.11" requirements/serving.txt

venv-tfio:
	@scripts/venv.sh $(TFIO) "3.10" requirements/tfio.txt requirements/data.txt

.PHONY: data
data: venv-run  ## make the rows of the example, data/flights/*.parquet
	@$(PY) scripts/prepare_flights.py

.PHONY: train
train: $(if $(filter configs/flights.yaml,$(CONFIG)),data,venv-run)  ## train the example on this machine: make train [CONFIG=configs/mine.yaml] [ARGS="--epochs=1"]
	@$(PY) -m trainer train --config $(CONFIG) $(ARGS)

.PHONY: train-bigquery
train-bigquery: data  ## train the example on a local BigQuery server: the figures of make train, without an account
	@$(PY) -m tests.servers.bigquery data/flights/*.parquet -- $(PY) -m trainer train --config configs/flights.yaml \
	  --name=flights-bigquery --data.source=bigquery://local.data.flights $(ARGS)

.PHONY: test test-fast test-default test-tf217 test-tfio
test: lint test-default test-tf217 test-tfio  ## lint, types and every test, on TensorFlow 2.21 and 2.17

test-fast: venv-dev  ## the tests that take seconds: make test-fast [ARGS="-k encode"]
	@$(PY) -m pytest -m "not slow and not bench and not stress and not image" $(ARGS)

.PHONY: stress
stress: venv-dev data  ## every job file of configs/jobs run here, not only one of each kind
	@$(PY) -m pytest -m stress $(ARGS)

.PHONY: repeat
repeat: venv-dev data  ## the tests of equal numbers, restarts and faults, many times in a row: make repeat [TIMES=50] [ARGS=tests/data]
	@for pass in $$(seq $(TIMES)); do \
	  $(PY) -m pytest -m faults $(ARGS) || { echo "failed in pass $$pass, after $$((pass - 1)) without a failure"; exit 1; }; \
	done; echo "$(TIMES) passes in a row without a failure"

test-default: venv-dev data venv-serving-if-any venv-tf217-if-any
	@$(PY) -m pytest -m "not bench and not stress and not image" $(ARGS)

test-tf217: data venv-tf217-if-any
	@if [ -x $(TF217)/bin/python ]; then \
	  echo "The tests on TensorFlow 2.17:"; $(TF217)/bin/python -m pytest -m "not slow and not bench and not stress and not image" $(ARGS); \
	fi

test-tfio: venv-tfio-if-any  ## the reader of tensorflow-io against our own, on TensorFlow 2.16
	@if [ -x $(TFIO)/bin/python ]; then \
	  echo "The tests of the reader of tensorflow-io, on TensorFlow 2.16:"; $(TFIO)/bin/python -m pytest tests/data/test_tfio.py $(ARGS); \
	fi

# The older stacks run where their Pythons are to be had, and say so where they don't.
.PHONY: venv-tf217-if-any venv-serving-if-any venv-tfio-if-any
venv-tf217-if-any venv-serving-if-any venv-tfio-if-any: %-if-any:
	@code=0; $(MAKE) -s $* 2>&1 || code=$$?; \
	if [ $$code -ne 0 ]; then echo "SKIPPED: the tests that need $*, for the reason above"; fi

.PHONY: lint format
lint: venv-dev  ## style, types and Dockerfiles
	@$(PY) -m ruff check $(CODE)
	@$(PY) -m ruff format --check $(CODE)
	@$(PY) -m mypy
	@$(VENV)/bin/hadolint Dockerfile Dockerfile.tpu

format: venv-dev  ## rewrite the code in the project's style
	@$(PY) -m ruff check --fix $(CODE)
	@$(PY) -m ruff format $(CODE)

.PHONY: golden
golden: venv-dev  ## write the expected text files of the tests anew: look at the diff
	@UPDATE_GOLDEN=1 $(PY) -m pytest $$(grep -rl UPDATE_GOLDEN tests --include='test_*.py') $(ARGS)
	@git status --short tests/golden

.PHONY: readme
readme: venv-dev  ## write the tables of README.md anew from the first lines of the files
	@$(PY) scripts/readme.py

.PHONY: bench
bench: venv-dev data  ## every figure that the README names, measured here
	@$(PY) -m benchmarks $(ARGS)

.PHONY: lock
lock: venv-dev  ## compile requirements/*.in to hash-locked files: make lock [ARGS=--upgrade]
	@scripts/lock.sh $(CURDIR)/$(VENV)/bin/uv $(ARGS)

.PHONY: package
package: venv-dev  ## source distribution for the prebuilt containers, dist/trainer-*.tar.gz
	@$(PY) setup.py --quiet sdist --formats=gztar --dist-dir dist
	@ls -1 dist/trainer-*.tar.gz

.PHONY: image image-gpu image-tpu push
BUILD = $(DOCKER) build --tag $(IMAGE) --build-arg BASE_IMAGE=$(BASE_IMAGE) \
  --build-arg VERSION=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' trainer/__init__.py) \
  --build-arg REVISION=$$(git describe --always --dirty --abbrev=40 2>/dev/null || echo unknown) \
  --build-arg CREATED=$$(date -u +%Y-%m-%dT%H:%M:%SZ) \
  --build-arg SOURCE=$$(git config --get remote.origin.url 2>/dev/null | sed 's|//[^/@]*@|//|' || echo unknown)

image:  ## container image for CPUs: make image IMAGE=us-docker.pkg.dev/PROJECT/REPOSITORY/trainer:1
	$(BUILD) $(ARGS) .

image-gpu:  ## container image for GPUs; with reduction servers: ARGS="--build-arg REDUCTION_SERVER=yes"
	$(BUILD) --build-arg LOCK=gpu $(ARGS) .

image-tpu:  ## container image for TPU VMs
	$(BUILD) --file Dockerfile.tpu $(ARGS) .

push:  ## send the image to its registry: make push IMAGE=us-docker.pkg.dev/PROJECT/REPOSITORY/trainer:1
	$(DOCKER) push $(IMAGE)

.PHONY: sbom test-image
sbom: venv-dev  ## software bills of materials of the images, CycloneDX: dist/sbom-*.json
	@mkdir -p dist
	@for lock in default gpu tpu; do \
	  $(PY) -m cyclonedx_py requirements requirements/$$lock.txt --output-reproducible --of JSON -o dist/sbom-$$lock.json; \
	  echo "dist/sbom-$$lock.json"; \
	done

test-image: venv-dev  ## build the CPU image on a Debian base and train in it (buildah, debootstrap; root): minutes
	@$(PY) -m pytest -m image -rs -s tests/integration/test_image.py $(ARGS)

.PHONY: clean
clean:  ## remove what can be built again (caches, dist, environments): never runs/ nor data/
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache $(VENV) $(TF217) $(SERVING) $(TFIO)
	find trainer tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
