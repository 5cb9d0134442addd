#!/usr/bin/env bash
# Foreign software of the package index, each in an environment of its own under .venv-peers. Xinference and the loggers
# borrow torch and all else from the toolkit's environment. stable-diffusion.cpp is compiled: it takes a C++ compiler
# and some minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=${1:-.venv} peers=${2:-.venv-peers}
mkdir -p "$peers"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
quiet="--quiet --disable-pip-version-check"

own() { # NAME BORROWS PACKAGE…: an environment with these, and if it borrows with all that the toolkit's has
  test -e "$peers/$1/complete" && return
  rm -rf "${peers:?}/$1"
  "$venv/bin/python" -m venv "$peers/$1"
  if "$2"; then
    echo "$site" >"$("$peers/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/toolkit.pth"
  fi
  "$peers/$1/bin/pip" install $quiet "${@:3}"
  touch "$peers/$1/complete"
}

own litellm false 'litellm[proxy]==1.106.2'
own readers false 'datasets==5.2.0' 'mlcroissant==1.1.1' 'webdataset==1.0.2' pillow
own loggers true 'tensorboard==2.21.0' 'mlflow==3.17.2' 'wandb==0.31.0'
own faiss-gpu true 'faiss-gpu==1.15.1'
own store true 'moto[server]==5.2.5' 's3fs==2026.9.0'
own xinference true 'xinference==4.1.0' 'transformers==5.17.0'
# diffusers needs this one, whose newer click Xinference's own requirements exclude: it runs with it all the same
"$peers/xinference/bin/pip" install $quiet 'huggingface-hub>=1.32,<2'
own stable-diffusion.cpp false 'cmake==4.*' ninja

here="$peers/stable-diffusion.cpp"
if test ! -e "$here/build/complete"; then
  "$here/bin/pip" download $quiet --no-deps --no-binary :all: -d "$here" 'stable-diffusion-cpp-python==0.4.7'
  tar -xzf "$here"/stable_diffusion_cpp_python-*.tar.gz -C "$here"
  PATH="$(cd "$here/bin" && pwd):$PATH" cmake -G Ninja -S "$here"/stable_diffusion_cpp_python-*/vendor/stable-diffusion.cpp \
    -B "$here/build" -DCMAKE_BUILD_TYPE=Release -DSD_SERVER_BUILD_FRONTEND=OFF -DSD_WEBP=OFF -DSD_WEBM=OFF >/dev/null
  PATH="$(cd "$here/bin" && pwd):$PATH" cmake --build "$here/build" --target sd-server >/dev/null
  touch "$here/build/complete"
fi
