# Two commands do all: `make bench` and `make test`. Both need Python >= 3.11 with venv, and nothing else.
#   make bench MODEL=folder-or-hub-id ROWS=rows.jsonl     measure your own
PYTHON ?= python3
TOX := .venv/bin/tox

.PHONY: bench test clean

bench: $(TOX)
	$(TOX) run -e bench -- $(if $(MODEL),--model "$(MODEL)") $(if $(ROWS),--rows "$(ROWS)") $(ARGS)

test: $(TOX)
	$(TOX) run-parallel --parallel 2 --parallel-live

$(TOX): constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --constraint constraints.txt tox
	@touch $(TOX)

clean:
	rm -rf .venv .tox .bench build *.egg-info
