# Two commands matter: `make lab` (set-up and the whole line in the virtual lab) and `make test` (set-up and all tests).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := $(or $(SOCLE_CACHE_DIR),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/socle)
INVENTORY ?= inventories/lab
SCENARIO ?= deploy
ANSIBLE_ARGS ?=

export PATH := $(CURDIR)/$(BIN):$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export MOLECULE_GLOB := molecule/*/molecule.yml

.DEFAULT_GOAL := help
.PHONY: help bench setup lab lab-down lab-ssh lab-log test test-slow lint unit sanity molecule e2e lock clean

help:
	@echo 'make lab         set-up, build and start the virtual lab, run site.yml in it'
	@echo 'make test        set-up and all tests (under 45 min)'
	@echo 'make test-slow   the long suites'
	@echo 'make lab-down    remove the lab hosts; caches stay'
	@echo 'make clean       remove the lab and its caches'
	@echo 'make lab-ssh HOST=lab-cpu-1    a shell on a lab host'
	@echo 'make molecule SCENARIO=deploy    one Molecule scenario: deploy, gpu_sim, models, rollback, watchdog, docker'
	@echo 'make lint | unit | sanity | e2e    one part of the tests'

setup:
	@tools/bootstrap.sh $(PYTHON) $(VENV) constraints.txt

lab: setup
	ansible-playbook site.yml -i $(INVENTORY) $(ANSIBLE_ARGS)

lab-down: setup
	ansible-playbook playbooks/lab.yml -i $(INVENTORY) -e virtual_lab_state=absent $(ANSIBLE_ARGS)

HOST ?= lab-cpu-1
# By the environment and quoted: no part of COMMAND may run on this machine.
export COMMAND
lab-ssh: setup
	@ansible-inventory -i $(INVENTORY) --host $(HOST) >/dev/null
	@ssh -p $$(ansible-inventory -i $(INVENTORY) --host $(HOST) | python3 -c 'import json,sys; print(json.load(sys.stdin)["ansible_port"])') \
	  -i $(CACHE)/lab/ssh/id_ed25519 -o UserKnownHostsFile=$(CACHE)/lab/ssh/known_hosts root@127.0.0.1 $${COMMAND:+"$$COMMAND"}

lab-log: COMMAND = journalctl -b --no-pager -n 200
lab-log: lab-ssh

lint: setup
	ruff check
	ruff format --check
	yamllint --strict .
	MYPYPATH=collections mypy plugins/module_utils socle
	ansible-lint --offline

unit: setup
	pytest tests/unit

sanity: setup
	tests/sanity/run.sh

molecule: setup
	molecule --base-config .config/molecule/config.yml test --scenario-name $(SCENARIO)

e2e: setup
	pytest tests/e2e

test: lint unit sanity
	molecule --base-config .config/molecule/config.yml test --scenario-name deploy
	molecule --base-config .config/molecule/config.yml test --scenario-name gpu_sim
	molecule --base-config .config/molecule/config.yml test --scenario-name models
	pytest tests/e2e

test-slow: setup
	pytest tests/slow
	molecule --base-config .config/molecule/config.yml test --scenario-name rollback
	molecule --base-config .config/molecule/config.yml test --scenario-name watchdog
	molecule --base-config .config/molecule/config.yml test --scenario-name docker

bench: setup
	python benchmarks/no_op_run.py --inventory $(INVENTORY)
	python benchmarks/redeploy_cost.py --inventory $(INVENTORY)
	python benchmarks/restart_speed.py
	python benchmarks/gpu_facts_cost.py
	python benchmarks/plan_cost.py
	python benchmarks/probe_accuracy.py
	python benchmarks/probe_peers.py
	python benchmarks/probe_agreement.py
	python benchmarks/model_noop.py
	python benchmarks/model_download.py
	python benchmarks/model_fanout.py

# Pins of every package for every supported interpreter; run it to take newer versions.
lock: setup
	$(BIN)/python -m pip install --quiet 'uv>=0.9,<1'
	uv pip compile --universal --no-header --no-annotate --python-version 3.11 --extra dev --output-file constraints.txt pyproject.toml

clean: lab-down
	rm -rf .ansible .mypy_cache .pytest_cache .ruff_cache build dist
	@if [ "$$(id -u)" -eq 0 ]; then as_root=; else as_root=sudo; fi; $$as_root rm -rf "$(CACHE)/lab" "$(CACHE)/sanity" "$(CACHE)/wheels"
