# `make` lists the targets. Everything is installed into .venv; nothing outside this folder is changed.

SHELL  := /bin/bash
VENV   := .venv
READY  := $(VENV)/.setup-done
PYTEST_ARGS ?=

# Some systems export NAME (the host's name under WSL): count it only when given to make.
ifneq ($(origin NAME),command line)
NAME :=
endif
export DATA NAME PYTHON THREADS TORCH_INDEX

IN_VENV := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
# After Ctrl-C a command says that it was interrupted, and make adds nothing ("*** Error 130"): it ends by the signal,
# which has to reach it before its child ends.
run = trap : INT; $(1) || { status=$$?; [ $$status = 130 ] || exit $$status; kill -INT $$PPID; sleep 0.2; }

.PHONY: help setup demo train bench gpu-check test lint clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@echo 'make TARGET [VARIABLE=value ...]'
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-9s %s\n", $$1, $$2}'
	@echo
	@echo 'DATA=folder NAME=name   demo, train: a folder of raw text and a name for the results, instead of the generated corpus'
	@echo 'THREADS=2               bench: threads (default: 1)'
	@echo 'PYTEST_ARGS="..."       test: passed to pytest (-n 0: in one process, not one for each core)'
	@echo 'PYTHON=python3.11       setup: the interpreter (default: the first of python3.12, python3.11 that runs)'
	@echo 'TORCH_INDEX=URL         setup: where to find torch, such as https://download.pytorch.org/whl/cpu'

setup: $(READY)  ## install everything into .venv (once; about 3 minutes)
	@echo 'Set-up is up to date: $(VENV)'

# The script writes the stamp as its last act: a set-up that was interrupted is taken up again.
$(READY): setup.py pyproject.toml constraints.txt train_scripts/setup.sh
	@$(call run,bash train_scripts/setup.sh $(VENV) $(READY))

demo: $(READY)  ## what decoding gains on the released models, and a small drafter trained: 2 minutes (or all on DATA=..., see train)
	@$(call run,$(IN_VENV) bash train_scripts/$(if $(DATA)$(NAME),demo.sh,quick_demo.sh))

train: $(READY)  ## from text to a table: train, distil and decode a small model on the generated corpus (or DATA=... NAME=...)
	@$(call run,$(IN_VENV) bash train_scripts/demo.sh)

bench: $(READY)  ## speed against fairseq and CTranslate2, and latency, on the models of `train` (or NAME=...)
	@$(call run,$(IN_VENV) bash train_scripts/bench.sh)

gpu-check: $(READY)  ## on a machine with a GPU: is all right there, and how fast; eight minutes, see docs/gpu.md
	@$(call run,$(IN_VENV) python -m fairseq_plugins.benchmarks.gpu_check --results results/gpu)

test: lint  ## lint and the whole test suite
	@echo 'Running the tests ...'
	@# With compiled files kept, which some systems turn off: every process would compile the tests anew. One process more
	@# than cores, since the tests of one process wait for Slurm.
	@$(IN_VENV) env -u PYTHONDONTWRITEBYTECODE python -m pytest -q --durations=10 -n $$(( $$(nproc) < 8 ? $$(nproc) + 1 : 8 )) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)

lint: $(READY)  ## ruff, mypy, clang-format and shellcheck
	@echo 'Checking the code with ruff, mypy, clang-format and shellcheck ...'
	@$(IN_VENV) ruff check .
	@$(IN_VENV) ruff format --check .
	@$(IN_VENV) mypy
	@$(IN_VENV) clang-format --dry-run --Werror $$(find fairseq_plugins tests -name '*.cpp' -o -name '*.h')
	@$(IN_VENV) shellcheck --severity=warning --external-sources train_scripts/*.sh .ci/run

clean:  ## remove caches and build leftovers; keeps .venv, data and trained models
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
	find . -path ./$(VENV) -prune -o -path ./.git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
