#!/usr/bin/env bash
# The wheel as a stranger gets it: built, checked, installed into an environment of its own, tried from another folder.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD python=${1:-python3} here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
pip="pip install --quiet --disable-pip-version-check"

"$python" -m venv "$here/tools"
"$here/tools/bin/python" -m $pip build twine check-wheel-contents
"$here/tools/bin/python" -m build --outdir "$here/dist" .
"$here/tools/bin/twine" check --strict "$here"/dist/*
"$here/tools/bin/check-wheel-contents" --ignore W009 "$here"/dist/*.whl # three packages lie in it: pe, adapters, embeddings

"$python" -m venv "$here/clean"
"$here/clean/bin/python" -m $pip -c constraints.txt "$(echo "$here"/dist/*.whl)[cpu]"
export PATH="$here/clean/bin:$PATH"
unset PYTHONPATH
cd "$here"
pe --version
pe --help >/dev/null
pe demo --help >/dev/null
pe explain >/dev/null
pe plan "$root/examples/folder.yaml"
python - <<'P'
import numpy as np
import pe

draw = np.random.default_rng(0).integers
for name in ("private", "public"):
    np.savez(f"{name}.npz", images=draw(0, 256, (100, 8, 8, 1), np.uint8), labels=["a", "b"] * 50)
data = pe.ImageNpz("private.npz", size=8, channels=1, classes=["a", "b"], declared_size=100)
pool = pe.api("public_images", path="public.npz", channels=1)
run = pe.evolve(data, pool, embedding="pixels", epsilon=4, delta=1e-5, population=20, iterations=1, out="run")
print(run.guarantee["statement"])
P
pe view run --write
pe verify run
