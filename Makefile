# Every target sets up what it needs; running one twice is fast.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
CORES := $(shell env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2)

.PHONY: demo test test-all bench faults soak lint install clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: install
	$(VENV)/bin/l2dp demo --out demo

# One thread for each of the parallel workers: more would only wait for each other.
test: lint
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest -n $(CORES) -m "not slow"

test-all: lint
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest -n $(CORES)

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Two hundred kills of `l2dp learn`, full and read-only disks: about half an hour.
faults: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m bench.faults --out bench/out/faults

# A thousand tasks in one home.
soak: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m bench.soak --out bench/out/soak

bench: install
	$(VENV)/bin/python -m bench --out bench/out

clean:
	rm -rf $(VENV) .venv-avalanche demo bench/out
