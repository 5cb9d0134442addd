#!/usr/bin/env bash
# CIFAR-10 by PrivImage, a diffusion model of public images like the private ones, then DP-SGD: Li et al., USENIX 2024.
#
# Needs  cifar-10-binary.tar.gz (170 MB); Imagenet32_train_npz.zip (3.4 GB); a GPU of 40 GB; 32 GB of memory, 20 of disk.
# Takes  200,000 public steps and 1,830 of DP-SGD, twice: about 2 × 50 hours of one A100 (14 GFLOP a draw and pass back,
#        a fifth of its 156 TFLOP/s in TF32), 150 USD at 1.50 an hour. No calls to anybody.
source "$(dirname "$0")/common.sh"

{ # bash reads all of it before it begins
needs 20 32 40
data cifar10
data imagenet32
change private.path="$DATA/made/cifar10/train.npz" api.public.path="$DATA/made/imagenet32/train.npz"
for_check api.public='{kind: glyphs}'
tiny api.network.channels='[8, 8]' api.network.layers=1 api.training.steps=3 api.training.expected_batch=40 \
  api.training.draws=1 api.training.block=1 api.sampling.steps=3 api.device=cpu private.declared_size=100 \
  api.pretraining='{steps: 3, batch: 8}' api.query='{steps: 3, batch: 8}' api.semantics=2 evolution.population=100 \
  embedding='{kind: pixels}'

for epsilon in 1 10; do
  evolve "epsilon$epsilon" published/cifar10_privimage.yaml "" privacy="{epsilon: $epsilon, delta: 1e-5}"
  train "epsilon$epsilon" "$DATA/made/cifar10/test.npz" --flip
done
row "accuracy at ε = 1" - 0.745 epsilon1 judged/resnet9
row "accuracy at ε = 10" 0.688 0.784 epsilon10 judged/resnet9
table
exit
}
