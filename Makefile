# refold. Each target does its own set-up: make and python3 (3.11 or newer) are all that has to be there.
# Keeps to GNU make 3.81 and a POSIX shell.

PYTHON ?= python3
VENV := .venv
# more arguments for pytest, the demo, the bench or interop: make test ARGS="-k layers"
ARGS ?=

# a test that hangs shows where and fails after this many seconds, instead of holding up everything
HANGING := --max-worker-restart 2 -o faulthandler_timeout=120 -o faulthandler_exit_on_timeout=true

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint bench soak peers interop constraints clean set-up set-up-dev

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

demo: set-up ## play a session with compaction and resume; needs no key and no network
	@$(VENV)/bin/refold demo $(ARGS)

test: set-up-dev ## run the tests
	@$(VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(HANGING) $(ARGS)

lint: set-up-dev ## check formatting, lint rules and types
	@status=0; \
	$(VENV)/bin/ruff format --check || status=1; \
	$(VENV)/bin/ruff check || status=1; \
	$(VENV)/bin/basedpyright --pythonpath $(VENV)/bin/python || status=1; \
	exit $$status

bench: set-up-dev ## measure what README and docs quote
	@test -f bench/__main__.py || { echo "no benchmarks here: bench/__main__.py is missing" >&2; exit 1; }
	@$(VENV)/bin/python -m bench $(ARGS)

peers: set-up ## install whom the bench compares with: the real program (430 MB from npm) and agent libraries
	@$(VENV)/bin/python -c "from interop.real import install; print(install())"
	@test -x .interop/libraries/bin/python || $(PYTHON) -m venv .interop/libraries
	@.interop/libraries/bin/pip install $(PIP_QUIET) openai-agents langchain-core
	@if command -v uv >/dev/null; then uv pip install -q --python $(VENV)/bin/python -c constraints.txt -e ".[tokens]"; \
	else $(VENV)/bin/python -m pip install $(PIP_QUIET) -c constraints.txt -e ".[tokens]"; fi
	@echo "peers are installed in .interop"

soak: set-up-dev ## random items, or damaged rollouts, through sessions: make soak ARGS="rollouts --seconds 1200 --seed 1"
	@$(VENV)/bin/python tests/soak/soak.py $(ARGS)

interop: set-up-dev ## let the real program (430 MB from npm) and refold go on with each other's sessions
	@$(VENV)/bin/python -m interop.run $(ARGS)

constraints: ## resolve every dependency anew and write constraints.txt
	@case "$$($(PYTHON) -V 2>&1)" in \
	"Python 3.11."*) ;; \
	*) echo "constraints are resolved with the oldest supported Python: make constraints PYTHON=python3.11" >&2; exit 1 ;; \
	esac
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(PYTHON) -m venv "$$folder" && \
	"$$folder/bin/pip" install $(PIP_QUIET) ".[tui,server,mcp,scale,tokens,dev]" && \
	"$$folder/bin/pip" freeze --exclude refold > "$$folder/pins" && \
	{ sed -n '/^#/p' constraints.txt && cat "$$folder/pins"; } > "$$folder/new" && \
	cp "$$folder/new" constraints.txt && \
	echo "constraints.txt: $$(grep -c == constraints.txt) packages"

clean: ## remove the environment and everything built
	@rm -rf $(VENV) build dist .ruff_cache .pytest_cache .hypothesis .benchmarks
	@find src tests bench interop -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Set-up. A stamp tells what an environment was made from: Python, place, and the two files that decide its content.
# It is taken away first and written last, so an interrupted set-up has none and starts again from nothing.
PIP_QUIET := -qq --disable-pip-version-check

define INSTALL
	@set -e; \
	found=$$($(PYTHON) -c 'import sys; print("%d.%d.%d %s" % (sys.version_info[:3] + (sys.version_info >= (3, 11),)))' \
		2>/dev/null) || found="not there"; \
	case "$$found" in \
	*True) ;; \
	*) echo "refold needs Python 3.11 or newer; $(PYTHON) is $${found% False} (another one: make PYTHON=...)" >&2; exit 1 ;; \
	esac; \
	made_from="$${found% True} $(CURDIR) $$(cat pyproject.toml constraints.txt | cksum)"; \
	made() { \
		[ "$$(cat $(VENV)/made-$$1 2>/dev/null)" = "$$made_from" ] && $(VENV)/bin/python -c '' 2>/dev/null; \
	}; \
	if made $(1); then exit 0; fi; \
	echo "setting up $(VENV) (once)" >&2; \
	uv=$$(command -v uv) || uv=; \
	if made base; then \
		rm -f $(VENV)/made-*; \
	else \
		rm -rf $(VENV); \
		if [ -n "$$uv" ]; then uv venv -q --python "$(PYTHON)" $(VENV); else $(PYTHON) -m venv $(VENV); fi; \
	fi; \
	if [ -n "$$uv" ]; then \
		uv pip install -q --python $(VENV)/bin/python -c constraints.txt -e "$(2)"; \
	else \
		$(VENV)/bin/python -m pip install $(PIP_QUIET) -c constraints.txt -e "$(2)"; \
	fi; \
	echo "$$made_from" > $(VENV)/made-base; \
	if [ $(1) = dev ]; then echo "$$made_from" > $(VENV)/made-dev; fi
endef

set-up:
	$(call INSTALL,base,.)

set-up-dev:
	$(call INSTALL,dev,.[dev])
