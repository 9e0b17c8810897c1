#!/usr/bin/env bash
# Makes a virtual environment and installs hash-locked requirements into it; does nothing where they are in already.
# usage: scripts/venv.sh FOLDER "3.11 3.12 ..." LOCK...     (the Python versions that will do, best first)
# PYTHON=python3.12 names the interpreter. Exit code 3: no such Python on this machine.
set -euo pipefail
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
venv=$1
versions=$2
shift 2

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

fits() { [[ " $versions " == *" $1 "* ]]; }

find_python() {
  local candidate version
  if [ -n "${PYTHON:-}" ]; then
    version=$(version_of "$PYTHON")
    if fits "${version:-none}"; then echo "$PYTHON"; return; fi
    # The default stack is made with the Python that was asked for, or not at all.
    [ "${PYTHON_STRICT:-}" = 1 ] && { echo "PYTHON=$PYTHON is ${version:-not a Python}" >&2; return; }
  fi
  if fits "$(version_of python3)"; then echo python3; return; fi
  for version in $versions; do
    for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python \
      "$(uv python find --no-project --no-python-downloads "$version" 2>/dev/null || true)"; do
      if [ -n "$candidate" ] && [ "$(version_of "$candidate")" = "$version" ]; then echo "$candidate"; return; fi
    done
  done
}

if [ -x "$venv/bin/python" ]; then
  python=$venv/bin/python
  fits "$(version_of "$python")" || {
    echo "$venv holds Python $(version_of "$python"); this needs one of: $versions. Remove $venv and run it again." >&2
    exit 2
  }
else
  python=$(find_python)
  if [ -z "$python" ]; then
    echo "No Python ${versions// /, } found for $venv ($(command -v python3 || echo 'no python3'):" \
      "$(version_of python3)). Install one, or name it: make PYTHON=python3.12 ..." >&2
    exit 3
  fi
fi

if [ ! -x "$venv/bin/python" ]; then
  echo "Making $venv with Python $(version_of "$python")"
  "$python" -m venv "$venv"
  python=$venv/bin/python
fi
sum() { "$python" -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$1"; }

# What is installed goes by content, not by date: a fresh checkout or a touched file installs nothing.
have=$venv/.installed
touch "$have"
for lock in "$(dirname "$0")/../requirements/build.txt" "$@"; do
  name=${lock##*/}
  line="$name $(sum "$lock")"
  grep -qxF "$line" "$have" && continue
  echo "Installing requirements/$name into $venv"
  options=(--quiet --require-hashes --no-build-isolation)
  [ "$name" = data.txt ] && options+=(--no-deps)
  "$python" -m pip install "${options[@]}" -r "$lock"
  others=$(grep -v "^$name " "$have" || true)
  printf '%s\n' "$others" "$line" | sed '/^$/d' >"$have"
done
