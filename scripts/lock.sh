#!/usr/bin/env bash
# Compiles requirements/*.in to hash-locked requirements/*.txt. Run by `make lock`; pins move only with --upgrade.
# usage: scripts/lock.sh UV [uv flags, such as --upgrade or --upgrade-package NAME]
set -euo pipefail
cd "$(dirname "$0")/../requirements"
uv=$1
shift
more=("$@")

# Extras stay in the pins: the pip of Python 3.10 takes `x[extra]` for unpinned where the lock says only `x==1`.
lock() {
  local name=$1
  shift
  echo "requirements/$name.txt"
  "$uv" pip compile --quiet --no-config --generate-hashes --no-strip-extras \
    --no-emit-index-url --no-emit-find-links \
    --custom-compile-command "make lock" --output-file "$name.txt" "$@" ${more[@]+"${more[@]}"} "$name.in"
}

# Laptops: one file for every system and every Python that the stack runs on.
lock build --universal --python-version 3.10
lock default --universal --python-version 3.10
lock submit --universal --python-version 3.10
lock dev --universal --python-version 3.10
lock tf217 --universal --python-version 3.10
lock serving --universal --python-version 3.10
lock data --universal --python-version 3.10 --no-deps
# Images: Linux on x86-64 and the Python of the Dockerfile.
lock gpu --python-platform x86_64-manylinux_2_28 --python-version 3.12
lock tpu --python-platform x86_64-manylinux_2_31 --python-version 3.12
# Linux on x86-64 too: the reader that it is for runs nowhere else.
lock tfio --python-platform x86_64-manylinux_2_28 --python-version 3.10

# A lock is for everybody: it must not say where this machine gets its packages from.
if grep -nE '^ *(-i|--index-url|--extra-index-url|-f|--find-links|--trusted-host)|https?://|file:' -- *.txt; then
  echo "lock: the lines above name a place of this machine" >&2
  exit 1
fi
