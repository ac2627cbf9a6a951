#!/bin/sh
# Looks for everything that the build needs and prints every problem with its fix, before anything is changed.
# Changes nothing itself. Exits 1 when something is missing.
#
#   scripts/preflight.sh [lint]     lint: clippy and rustfmt are needed too
#
# scripts/setup.sh sources this file and goes on with $python (an interpreter that can make a virtual environment)
# and $missing (the packages that have to be downloaded).

cd "$(dirname "$0")/.." || exit 1

problems=0
problem() { # what is wrong, how to put it right
    problems=$((problems + 1))
    printf '  %d. %s\n     fix: %s\n' "$problems" "$1" "$2" >&2
}
have() { command -v "$1" >/dev/null 2>&1; }

# $1 >= $2, both major.minor[.patch]
at_least() {
    a=${1#*.} b=${2#*.}
    [ "${1%%.*}" -gt "${2%%.*}" ] || { [ "${1%%.*}" -eq "${2%%.*}" ] && [ "${a%%.*}" -ge "${b%%.*}" ]; }
}

new_enough='import sys; sys.exit(sys.version_info < (3, 11))'

check_python() {
    python=''
    if [ -x .venv/bin/python ] && .venv/bin/python -c "$new_enough" 2>/dev/null; then
        python=.venv/bin/python
        return
    fi
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if have "$candidate" && "$candidate" -c "$new_enough" 2>/dev/null; then
            python=$candidate
            break
        fi
    done
    if [ -z "$python" ]; then
        problem "no Python 3.11 or newer (looked for ${PYTHON:-python3, python3.13, python3.12, python3.11})" \
            "sudo apt install python3 python3-venv, or name one: make PYTHON=/path/to/python3.12 ..."
    elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        suffix=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        problem "$python cannot make virtual environments (no ensurepip)" "sudo apt install python$suffix-venv"
    fi
}

check_compilers() {
    have cc || have gcc || have clang || problem "no C compiler (Rust needs one to link)" "sudo apt install gcc"
    have make || problem "no make" "sudo apt install make"

    wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
    rustup='https://rustup.rs installs a current one'
    if ! have cargo; then
        problem "no cargo (Rust $wanted or newer)" "$rustup"
        return
    fi
    found=$(cargo --version 2>/dev/null | cut -d' ' -f2)
    if [ -z "$found" ]; then
        problem "cargo is there but does not run" "$rustup; or: rustup default stable"
    elif ! at_least "$found" "$wanted"; then
        problem "cargo $found is older than $wanted" "rustup update stable; $rustup"
    fi
    [ "${1:-}" = lint ] || return 0
    cargo clippy --version >/dev/null 2>&1 ||
        problem "no clippy" "rustup component add clippy (or: sudo apt install rust-clippy)"
    cargo fmt --version >/dev/null 2>&1 ||
        problem "no rustfmt" "rustup component add rustfmt (or: sudo apt install rustfmt)"
}

# Both only if there is something to download: a machine that is set up works offline and may be full.
check_downloads() {
    missing=all
    if [ "$python" = .venv/bin/python ]; then
        missing=$("$python" scripts/requirements.py --missing) || missing=all
    fi
    [ -n "$missing" ] || return 0

    case $missing in
    all | *torch==*)
        free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
        [ "$free" -ge 12 ] || problem "only $free GB of disk free here; torch and the builds need about 12 GB" \
            "free some, or clone pdsched to a larger disk"
        tmp=$(df -Pk "${TMPDIR:-/tmp}" | awk 'NR == 2 { print int($4 / 1048576) }')
        [ "$tmp" -ge 3 ] || problem "only $tmp GB free in ${TMPDIR:-/tmp}, where pip unpacks its downloads" \
            "export TMPDIR=/a/larger/folder"
        ;;
    esac

    # pip itself asks, so that the user's index, proxy and certificates are the ones tried. Where there is no pip yet,
    # scripts/setup.sh finds out.
    [ -n "$python" ] && "$python" -m pip --version >/dev/null 2>&1 || return 0
    probe=$(mktemp -d)
    "$python" -m pip download --quiet --disable-pip-version-check --no-input --no-deps --no-cache-dir --retries 1 --timeout 15 \
        --dest "$probe" iniconfig >/dev/null 2>"$probe/log" ||
        problem "pip cannot download: $(grep -m1 ERROR "$probe/log" || echo 'no answer from the package index')" \
            "check the network; behind a proxy or a mirror: export HTTPS_PROXY=... or PIP_INDEX_URL=..."
    rm -rf "$probe"
}

check_python
check_compilers "${1:-}"
[ "$problems" -gt 0 ] || check_downloads

if [ "$problems" -gt 0 ]; then
    echo "pdsched cannot be built yet: the above is missing." >&2
    exit 1
fi
