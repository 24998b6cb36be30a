# Everything here sets up .venv by itself first; that takes no time when it is up to date.
# `make help` lists the targets. PYTHON=/path/to/python chooses the interpreter that .venv is made with.
.DEFAULT_GOAL := help
.PHONY: help setup setup-test quickstart test check-types warm-driving warm-warp test-fast nightly carla gpu format type smoke bench docs clean
PY := .venv/bin/python

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: ## make the virtual environment .venv with robotrl[train]
	@python=$$(sh tools/find_python.sh) && "$$python" tools/setup_env.py train

setup-test:
	@python=$$(sh tools/find_python.sh) && "$$python" tools/setup_env.py test

quickstart: setup ## demonstrations, cloning, fine-tuning, export, control (OUT=quickstart SEED=0)
	@.venv/bin/robotrl quickstart --out $(or $(OUT),quickstart) --seed $(or $(SEED),0)

test: setup-test ## lint, types and all tests; fails on a skip that tests/allowed_skips.txt does not list
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check --quiet .
	@$(MAKE) --no-print-directory --output-sync=target -j 3 check-types warm-driving warm-warp
	@ROBOTRL_STRICT_SKIPS=1 $(PY) -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations 25

# each keeps one core busy for minutes, so `make test` runs them beside each other
check-types:
	@$(PY) tools/typecheck.py

warm-driving warm-warp: warm-%:
	@$(PY) tools/warm_kernels.py $*

test-fast: setup-test ## the tests that a change most likely breaks, in under two minutes
	@.venv/bin/ruff check .
	@$(PY) tools/fast_tests.py

build/mjlab/bin/robotrl: # mjlab pins another MuJoCo: an environment of its own
	@$(PY) -m venv build/mjlab
	@build/mjlab/bin/pip install -q torch==2.13.0 mjlab==1.6.0 gymnasium pyarrow psutil onnxruntime numba \
		safetensors onnx onnxscript tyro rich tensorboard pillow
	@build/mjlab/bin/pip install -q --no-deps -e .

nightly: setup-test build/mjlab/bin/robotrl ## the tests against mjlab, in an environment of their own, in some minutes
	@ROBOTRL_MJLAB_PYTHON=$(CURDIR)/build/mjlab/bin/python $(PY) -m pytest -q tests/sims/isaac/test_mjlab.py

gpu: setup-test ## on a machine with a CUDA GPU: the sims' tests that need one, and the speed of MuJoCo Warp there
	@$(PY) -m pytest -q tests/sims/mujoco/test_warp*.py tests/sims/bev/test_backends.py
	@.venv/bin/robotrl bench gpu --cells "mujoco*"

carla: setup-test ## the tests against a running CARLA server (CARLA=127.0.0.1:2000)
	@ROBOTRL_CARLA=$(or $(CARLA),127.0.0.1:2000) $(PY) -m pytest -q tests/sims/carla/test_live.py

format: setup-test ## format the code and mend what the linter can
	@.venv/bin/ruff check --fix-only --quiet .
	@.venv/bin/ruff format .

type: setup-test ## check the types (strict), on the code laid out as it is installed
	@$(PY) tools/typecheck.py

smoke: setup-test ## build the wheel and use it in two empty environments, one of them without torch
	@$(PY) tools/smoke.py

bench: setup-test ## run a benchmark (NAME=..., JSON=file); without NAME, list them
	@.venv/bin/robotrl bench $(if $(NAME),$(NAME) $(if $(JSON),--json $(JSON)),--list)

docs: setup-test ## build the pages as a site with search, in build/site
	@$(PY) tools/docs_site.py

clean: ## remove what builds and tests leave behind; .venv and runs stay
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
