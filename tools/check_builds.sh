#!/usr/bin/env bash
# Installs Headway in clean environments in every way that a build can go, and asks each what it has:
#   a compiler is there · editable · none is there, zig's comes as a package · the compiler fails · through an sdist
# Needs a package index. Without the dependencies of Headway, but for one: only the library is loaded.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install -q msgspec  # all that is needed to ask for the library
# No compiler on this path.
bare="$folder/bin"
mkdir "$bare"
for tool in env sh git; do ln -s "$(command -v "$tool")" "$bare/$tool"; done
fail() { echo "FAILED: $1"; exit 1; }

# What an installed Headway says of its library, from outside the checkout.
found() {
  (cd "$folder" && "$python" - <<'EOF'
import importlib.util, sys, types
from pathlib import Path
# Without torch, which headway.compute.native.library does not need.
spec = importlib.util.find_spec("headway.compute.native.library")
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
library = module.find()
print(f"absent: {library.why}" if isinstance(library, module.Absent) else f"levels: {' '.join(library.levels)}")
EOF
  )
}
expect() {
  said=$(found)
  echo "  $said"
  [[ $said == $2* ]] || fail "$1: expected $2"
  (cd "$folder" && "$python" - <<'EOF'
from headway.artifacts.shipped import Shipped, locate
print(f"  {locate(Shipped('emoji-64')).path}")
EOF
  ) || fail "$1: the model that comes with Headway is not there"
  "$python" -m pip uninstall -q -y headway
}

echo "with a compiler"
"$python" -m pip install -q --no-deps .
expect "with a compiler" "levels: "

echo "editable"
"$python" -m pip install -q --no-deps -e .
expect editable "levels: "

echo "without a compiler: zig's from its package"
env -u CXX PATH="$bare" "$python" -m pip install -q --no-deps .
expect zig "levels: "

echo "with a compiler that fails"
CXX=false "$python" -m pip install -q --no-deps .
expect failing "absent: not built when Headway was installed: false ended with status 1"

echo "left out"
HEADWAY_BUILD_NATIVE=never "$python" -m pip install -q --no-deps .
expect "left out" "absent: not built when Headway was installed: HEADWAY_BUILD_NATIVE was never"

echo "with a compiler that fails, where the library must be there"
if CXX=false HEADWAY_BUILD_NATIVE=always "$python" -m pip install -q --no-deps . 2>/dev/null; then
  fail "a build without the library was accepted"
fi

echo "through an sdist"
"$python" -m pip install -q build
"$python" -m build -o "$folder/dist" . >/dev/null
ls "$folder/dist"
"$python" -m pip install -q --no-deps "$folder"/dist/*.whl
expect sdist "levels: "

# Another processor's levels are compiled where zig can be had, and compared with `generic` where an emulator is
# (Debian's qemu-user and libc6-arm64-cross).
echo "for another processor"
"$python" -m pip install -q ziglang
"$python" - "$folder" <<'EOF'
import subprocess
import sys
from pathlib import Path
sys.path.insert(0, "native")
import build
library = Path(sys.argv[1]) / "libheadway.so"
command = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu.2.28"]
build.build(library, command, "aarch64")
check = ["native/check_levels.cpp", str(library), f"-Wl,-rpath,{library.parent}", "-o", str(library.parent / "check")]
subprocess.run([*command, *build.FLAGS, *check], check=True)
EOF
echo "  compiled for aarch64"
if command -v qemu-aarch64 >/dev/null && [[ -d /usr/aarch64-linux-gnu ]]; then
  qemu-aarch64 -L /usr/aarch64-linux-gnu "$folder/check" || fail "a level of aarch64 differs from generic"
else
  echo "  not run: there is no qemu-aarch64, or no libraries for it"
fi
