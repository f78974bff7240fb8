# Two commands for a fresh machine: `make lab` and `make test`. Everything is a small script in scripts/, so that
# people and CI run the same steps. `make help` lists the targets.

.DEFAULT_GOAL := help
.PHONY: help lab test tour env lint types widgets unit notebooks sweeps browser recipes binder check format clean
# The steps share one environment and one terminal: run them in order, whatever -j says.
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

help: ## list the targets
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

lab: ## install, then open JupyterLab on the first notebook (without a display: print its URL)
	@scripts/lab

test: ## install, then lint, types, the front end, unit and integration tests, notebooks
	@scripts/test

tour: ## do the main job in the terminal and write a page, out/tour.html
	@scripts/tour

env: ## only create the environment for development, in .venv
	@scripts/environment dev

lint: env ## ruff: rules and formatting, changes nothing
	@scripts/run lint

types: env ## mypy, strict
	@scripts/run types

widgets: ## the front end: its types (tsc) and its linter (eslint)
	@scripts/run widgets

unit: env ## unit and integration tests
	@scripts/run unit

notebooks: env ## every notebook: canonical, and each stored output reproduced
	@scripts/run notebooks

check: lint types ## what needs no execution: lint and types

sweeps: env ## the tests that `make test` leaves out because they take minutes
	@PYTEST_ADDOPTS='-m sweep' .venv/bin/python -m scripts.each_file

browser: ## the tests in a real JupyterLab in chromium
	@scripts/browser

recipes: ## install the libraries of docs/recipes.md (220 MB) and run each recipe
	@scripts/environment recipes && .venv/bin/python -m pytest tests/integration/test_recipes.py

binder: ## build Binder's environment from binder/, run every notebook in it, print the memory
	@scripts/binder

format: env ## apply ruff's fixes and formatting, make the notebooks canonical
	@scripts/format

clean: ## remove the environment and everything that is made
	@rm -rf .venv build dist out .mypy_cache .pytest_cache .ruff_cache
