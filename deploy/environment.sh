# shellcheck shell=sh
# Sourced by ./run and ./test: finds a Python, makes .venv, and installs the locks that are asked for, once each.
# Expects $root, the folder of the checkout. Talks on standard error only.
root=${root:?}

say() { printf 'tidegate: %s\n' "$*" >&2; }

die() { say "$*"; exit 2; }

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
  for name in "${TIDEGATE_PYTHON:-python3}" python3 python3.14 python3.13 python3.12 python3.11; do
    if is_recent "$name"; then
      command -v "$name"
      return
    fi
  done
  die "no Python 3.11 or newer is on the PATH; on Debian: apt-get install python3 python3-venv"
}

# An environment finds its packages relative to itself, so that it may move with its checkout; but not under a Python
# of another version, nor without its pyvenv.cfg.
is_whole() {
  "$root/.venv/bin/python" -c '
import os, sys
packages = os.path.join(sys.prefix, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
sys.exit(sys.version_info < (3, 11) or sys.prefix == sys.base_prefix or not os.path.isdir(packages))' 2>/dev/null
}

make_environment() {
  if is_whole; then
    return
  fi
  python=$(find_python) || exit 2
  rm -rf "$root/.venv"
  say "making .venv with $("$python" --version)"
  if command -v uv >/dev/null 2>&1; then
    uv venv --quiet --python "$python" "$root/.venv" || die "uv could not make .venv; what it said stands above"
  else
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c 'import ensurepip, venv' 2>/dev/null \
      || die "Python's venv module is missing; on Debian: apt-get install python$version-venv"
    "$python" -m venv "$root/.venv" || die "the virtual environment could not be made; Python's reason stands above"
  fi
}

# Install deploy/lock/NAME.txt unless this very content was installed before.
install_lock() {
  lock="$root/deploy/lock/$1.txt"
  stamp="$root/.venv/.lock-$1"
  wanted=$(cksum <"$lock")
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    return
  fi
  say "installing deploy/lock/$1.txt (once)"
  if command -v uv >/dev/null 2>&1; then
    VIRTUAL_ENV="$root/.venv" uv pip install --quiet --no-deps --require-hashes -r "$lock" \
      || die "deploy/lock/$1.txt could not be installed; uv's reason stands above"
  else
    "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$lock" \
      || die "deploy/lock/$1.txt could not be installed; pip's reason stands above"
  fi
  printf '%s' "$wanted" >"$stamp"
}

# Put the checkout's packages and the `tidegate` command into the environment; both still hold once it was moved.
link_checkout() {
  site=$("$root/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  printf '../../../..\n' >"$site/tidegate.pth"  # out of .venv/lib/pythonX.Y/site-packages
  cat >"$root/.venv/bin/tidegate" <<'EOF'
#!/bin/sh
exec "$(dirname -- "$(readlink -f -- "$0")")/python" -P -m proxy "$@"
EOF
  chmod +x "$root/.venv/bin/tidegate"
}

prepare() {
  make_environment
  for name in "$@"; do
    install_lock "$name"
  done
  [ -x "$root/.venv/bin/tidegate" ] || link_checkout
}
