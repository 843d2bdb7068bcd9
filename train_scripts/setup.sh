#!/usr/bin/env bash
# Install the package and its dependencies into a virtual environment. Usually run by `make`.
#
#   train_scripts/setup.sh [VENV [STAMP]]
#
# PYTHON        interpreter; default: the first of python3.12, python3.11 that runs
# TORCH_INDEX   further package index for torch, such as https://download.pytorch.org/whl/cpu
#
# It is safe to run again: installed packages are kept, and STAMP is written only when everything works.
#
# fairseq is compiled, because it has no wheel for Python 3.11. Its setup.py imports torch.utils.cpp_extension. In this one
# command, PYTHONPATH has a substitute for that module (train_scripts/fairseq_build says what it omits), so that the build
# needs no torch and runs while torch is downloaded. The wheel is kept out of pip's cache, where other projects would find it.
set -euo pipefail
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
    -*) printf 'error: %s: no such option; usage: train_scripts/setup.sh [VENV [STAMP]]\n' "$1" >&2; exit 2 ;;
esac
venv=${1:-.venv}
stamp=${2:-$venv/.setup-done}
log=$venv/setup.log

say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

trap 'printf "\nSet-up interrupted. The next make resumes it.\n" >&2; exit 130' INT TERM
building= # process id of the build of fairseq
trap 'if [ -n "$building" ]; then kill "$building" 2>/dev/null || true; fi' EXIT

# A name on the PATH is not enough: version managers leave shims for versions that are not active.
runs() { "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        runs "$PYTHON" || die "PYTHON=$PYTHON does not run, is not 3.11 or 3.12, or lacks the venv module (Debian, Ubuntu: apt install python3-venv)"
        say "$PYTHON"
        return
    fi
    for name in python3.12 python3.11 python3; do
        if runs "$name"; then say "$name"; return; fi
    done
    die "no Python 3.11 or 3.12 with the venv module found (tried python3.12, python3.11, python3); install one (Debian, Ubuntu: apt install python3-venv python3-dev) or name it: make setup PYTHON=/path/to/python3.11"
}

# Write pip's output to the log; after a failure print its end.
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
install() { "${pip[@]}" install --constraint constraints.txt "$@"; }
install_quietly() {
    install "$@" >>"$log" 2>&1 || { tail -n 30 "$log" >&2; return 1; }
}

installed() { "$venv/bin/python" -c 'import sys; from importlib.metadata import version; version(sys.argv[1])' "$1" 2>/dev/null; }

if runs "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    say "Set-up: using the environment in $venv ($("$venv/bin/python" --version)). To change the Python, remove $venv first."
else
    python=$(find_python)
    say "Set-up: making a new environment in $venv with $python ($("$python" --version))."
    "$python" -m venv --clear "$venv"
fi

say "Set-up: the output of pip goes to $log."
: >"$log"

install_quietly --upgrade pip || die "pip could not be upgraded: is a package index reachable?"
install_quietly cython nanobind numpy 'setuptools<81' wheel || die "the build tools could not be installed (the reason is above)"

if installed fairseq-fixed; then
    say "Set-up 1/3: fairseq is already installed."
else
    say "Set-up 1/3: building fairseq, about a minute of C++ and Cython, in the background ..."
    rm -rf "$venv/wheels"
    PYTHONPATH=$PWD/train_scripts/fairseq_build "${pip[@]}" wheel --no-cache-dir --no-deps --no-build-isolation \
        --no-binary fairseq-fixed --wheel-dir "$venv/wheels" fairseq-fixed==0.12.3.1 >"$venv/fairseq.log" 2>&1 &
    building=$!
fi

torch=(torch torchaudio) # together: fairseq requires torchaudio, and PyPI's needs a torch with CUDA
if [ -n "${TORCH_INDEX:-}" ]; then torch+=(--extra-index-url "$TORCH_INDEX"); fi
install_torch=install_quietly
if installed torch; then
    say "Set-up 2/3: torch is already installed."
else
    say "Set-up 2/3: installing torch (200 MB to 3 GB to download, depending on the platform) ..."
    if [ "$(uname -s)" = Linux ] && [ -z "${TORCH_INDEX:-}" ] && ! command -v nvidia-smi >/dev/null; then
        say "            No GPU found. The smaller torch, for the CPU only: make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu"
    fi
    if [ -t 1 ]; then install_torch=install; fi # on a terminal: show the progress of the download
fi
"$install_torch" "${torch[@]}" || die "torch could not be installed (the reason is above)"

if [ -n "$building" ]; then
    wait "$building" || { tail -n 30 "$venv/fairseq.log" >&2; die "fairseq could not be built (the reason is above). It needs a C++ compiler and the headers of Python (Debian, Ubuntu: apt install g++ python3-dev)"; }
    building=
fi

say "Set-up 3/3: installing this package, its requirements and the test tools ..."
install_quietly --no-build-isolation --find-links "$venv/wheels" --editable '.[test,metrics,bench,serve]' || die "the package could not be installed (the reason is above)"

# transformers imports torchaudio where it finds it, and fails if that does not fit torch. Only speech data needs it.
if installed torchaudio && ! "$venv/bin/python" -c 'import torchaudio' 2>>"$log"; then
    say "            torchaudio does not fit torch and is removed. One that fits has torch's index: make setup TORCH_INDEX=URL"
    "${pip[@]}" uninstall --yes torchaudio >>"$log" 2>&1
fi

# fairseq looks for `--user-dir fairseq_plugins` in the current folder, then in the folder that contains fairseq. An
# editable package is not there, so this file is: it becomes the package. An ordinary `pip install .` writes the package there.
beside=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/fairseq_plugins
mkdir -p "$beside"
printf '__file__ = %s\n__path__ = [%s]\nwith open(__file__, encoding="utf-8") as source:\n    exec(compile(source.read(), __file__, "exec"))\n' \
    "$("$venv/bin/python" -c 'import os; print(repr(os.path.abspath("fairseq_plugins/__init__.py")))')" \
    "$("$venv/bin/python" -c 'import os; print(repr(os.path.abspath("fairseq_plugins")))')" >"$beside/__init__.py"
# Type checkers read the types of the package itself, through the folder that this file names.
pwd >"$beside.pth"

"$venv/bin/python" - <<'PY' || die "the installed packages do not work together (the reason is above): remove $venv and try again"
import logging
import platform

logging.disable(logging.INFO)  # fairseq's hints about optional packages

import fairseq
import torch
from fairseq import libbleu  # noqa: F401  (C++)
from fairseq.data import data_utils_fast, token_block_utils_fast  # noqa: F401  (Cython)

device = "with a GPU" if torch.cuda.is_available() else "on the CPU"
print(f"Set-up finished: Python {platform.python_version()}, torch {torch.__version__} {device}, fairseq {fairseq.__version__}.")
PY
rm -rf "$venv/wheels"
touch "$stamp"
