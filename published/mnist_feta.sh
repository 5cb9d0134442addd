#!/usr/bin/env bash
# MNIST by DP-FETA, a diffusion model that learns central images first, then by DP-SGD: Li et al., S&P 2025.
#
# Needs  the four files of MNIST (11 MB); a GPU of 24 GB; 5 GB of disk.
# Takes  2,200 steps of 4,096 records, 32 draws each, twice: about 2 × 17 hours of one A100 (6 GFLOP a draw and pass back,
#        a fifth of its 156 TFLOP/s in TF32), 50 USD at 1.50 an hour. `pe plan published/mnist_feta.yaml --dry-run` on
#        that GPU tells it exactly. No calls to anybody.
source "$(dirname "$0")/common.sh"

{ # bash reads all of it before it begins
needs 5 8 24
data mnist
change private.path="$DATA/made/mnist/train.npz"
tiny api.network.channels='[8, 8]' api.network.layers=1 api.training.steps=3 api.training.expected_batch=40 \
  api.training.draws=1 api.training.block=1 api.sampling.steps=3 api.device=cpu private.declared_size=400 \
  api.easy='[{kind: central_images, share: 0.1, images: 40, training: {steps: 3, batch: 8}}]' evolution.population=100

for epsilon in 1 10; do
  evolve "epsilon$epsilon" published/mnist_feta.yaml "" privacy="{epsilon: $epsilon, delta: 1e-5}"
  train "epsilon$epsilon" "$DATA/made/mnist/test.npz"
done
row "accuracy at ε = 1" - 0.956 epsilon1 judged/resnet9
row "accuracy at ε = 10" - 0.981 epsilon10 judged/resnet9
table
exit
}
