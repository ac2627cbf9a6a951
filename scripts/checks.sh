#!/bin/sh
# Runs the checks one by one with their times. All run, whatever fails, so that one call shows everything.
#
#   scripts/checks.sh lint          formatting, clippy, ruff, mypy, stubtest
#   scripts/checks.sh test [ARG...] those and the Rust and Python tests; ARGs go to pytest

set -u
cd "$(dirname "$0")/.." || exit 1
mode=$1
shift

bin=.venv/bin
total=5
[ "$mode" = test ] && total=7
number=0
failed=''

check() { # name, command...
    name=$1
    shift
    number=$((number + 1))
    printf '[%d/%d] %s ...\n' "$number" "$total" "$name"
    began=$(date +%s)
    if "$@"; then
        printf '[%d/%d] %s: ok, %d s\n' "$number" "$total" "$name" "$(($(date +%s) - began))"
    else
        printf '[%d/%d] %s: FAILED (%s)\n' "$number" "$total" "$name" "$*"
        failed="$failed  $name\n"
    fi
}

ruff() { $bin/ruff check --quiet && $bin/ruff format --check --quiet; }
sources() { # the folders that hold Python, since mypy refuses one that does not
    for folder in python tests benches examples; do
        [ -z "$(find "$folder" -name '*.py' 2>/dev/null | head -n 1)" ] || echo "$folder"
    done
}

check 'rustfmt' cargo fmt --all --check
check 'clippy' cargo clippy --quiet --workspace --all-targets -- --deny warnings
[ "$mode" = test ] && check 'Rust tests' cargo test --quiet --workspace
check 'ruff' ruff
# shellcheck disable=SC2046
check 'mypy' $bin/mypy $(sources)
check 'stubtest' $bin/python -m mypy.stubtest --mypy-config-file pyproject.toml pdsched._core
[ "$mode" = test ] && check 'Python tests' $bin/pytest "$@"

if [ -n "$failed" ]; then
    printf 'failed:\n%b' "$failed"
    exit 1
fi
echo "all checks passed"
