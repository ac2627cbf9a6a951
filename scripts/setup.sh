#!/bin/sh
# Makes .venv ready: every Python package at its tested version, every Rust crate fetched. Does nothing, offline, when
# all is there; says what it does when it is not.
#
#   scripts/setup.sh [lint]         as for scripts/preflight.sh, which it begins with

set -eu
. "$(dirname "$0")/preflight.sh"

say() { printf '[setup] %s\n' "$1"; }

if [ "$python" != .venv/bin/python ]; then
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
fi

# Crates first: they are small, so that a network that does not let cargo through shows before three gigabytes of torch.
lock=$(cksum <Cargo.lock)
fetched=.venv/.crates-fetched
if [ "$(cat $fetched 2>/dev/null)" != "$lock" ]; then
    say "fetching Rust crates"
    cargo fetch --locked || {
        echo "cargo could not fetch: check the network (HTTPS_PROXY?), or that Cargo.lock fits Cargo.toml" \
            "(cargo update --workspace)" >&2
        exit 1
    }
    echo "$lock" >$fetched
fi

if [ -n "$missing" ]; then
    say "installing Python packages into .venv (torch is one download of about 3 GB)"
    .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip --upgrade >/dev/null
    .venv/bin/python scripts/requirements.py >.venv/requirements.txt
    .venv/bin/python -m pip install --disable-pip-version-check --requirement .venv/requirements.txt --constraint constraints.txt || {
        echo "pip could not install: check the network; behind a proxy or a mirror set HTTPS_PROXY or PIP_INDEX_URL" >&2
        exit 1
    }
fi
