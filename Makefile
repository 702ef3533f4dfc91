# Every target works on a machine that has only Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STUDIES := $(VENV)/.studies
INSTALLED := $(VENV)/.installed
# Only files whose hashes the locks name, and wheels: the build script of a source package would fetch what no lock names.
LOCKED := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --no-deps --only-binary :all:
# What pip leaves to do here takes all cores. Examples of wrong syntax that packages carry are no error.
COMPILED := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
# Or each of a hundred processes that the tests start compiles fedscape again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: study install test check bench results site clean format lock dist versions

study: $(STUDIES)
	$(BIN)/python -m fedscape study --force

install: $(INSTALLED)

# One BLAS thread in each of two processes: four threads on two cores mostly wait for each other.
test: export OMP_NUM_THREADS = 1
test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/unit/test_layers.py

bench: $(INSTALLED)
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script --quick || exit 1; done

# The pages of benchmarks/ from the files in benchmarks/results/.
results: $(INSTALLED)
	$(BIN)/python benchmarks/render.py

site: $(INSTALLED)
	$(BIN)/mkdocs build --quiet

# The site of this version beside those of others: public/VERSION/.
versions: $(INSTALLED)
	$(BIN)/python tools/versioned.py

# The wheel and the sdist, each installed by itself and tried.
dist: $(INSTALLED)
	$(BIN)/python tools/dist.py

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(INSTALLED)
	$(BIN)/python tools/lock.py

clean:
	rm -rf $(VENV) site dist public

# What a study needs. Other targets install the rest (Ray, Flower, the test tools).
$(STUDIES): pyproject.toml requirements.lock requirements-torch.lock requirements-torch-cpu.lock
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 14) else "fedscape needs Python 3.11 to 3.14: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing fedscape with torch into $(VENV): about 1.6 GB, a minute or a few"
	$(LOCKED) -r requirements.lock
	@$(LOCKED) -r requirements-torch-cpu.lock 2>/dev/null || { echo "no CPU build of torch: taking the default one with its GPU libraries, some GB more" && $(LOCKED) -r requirements-torch.lock; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(COMPILED)
	touch $(STUDIES)

$(INSTALLED): $(STUDIES) requirements-dev.lock
	@echo "installing the other extras and the test tools: about 1.2 GB more"
	$(LOCKED) -r requirements-dev.lock
	$(COMPILED)
	touch $(INSTALLED)
