#!/usr/bin/env bash
# CIFAR-10 from an ImageNet model, by Private Evolution: Lin et al., ICLR 2024 (arXiv 2305.15560), section 5.1.1.
#
# Needs  cifar-10-binary.tar.gz (170 MB); the checkpoint imagenet64_cond_270M_250K (1.1 GB) and Inception (95 MB), which
#        are fetched; a GPU of 16 GB; 60 GB of disk.
# Takes  8.7 million images of 100 DDIM steps: 373 hours of one A100 (178 GFLOP a step, a third of 312 TFLOP/s), 560 USD
#        at 1.50 an hour. The first row alone takes 137. No calls to anybody.
source "$(dirname "$0")/common.sh"

{ # bash reads all of it before it begins
needs 60 8 16 imagenet64_cond_270M_250K.pt pt_inception-2015-12-05-6726825d.pth
data cifar10
change private.kind=npz private.path="$DATA/made/cifar10/train.npz"
tiny api.model="$(random improved)" api.size=8 api.image_size=8 private.size=8 private.resize=stretch api.steps=5 \
  evolution.population=40 evolution.iterations=1 evolution.degree=0.8 evolution.lookahead=1 embedding='{kind: pixels}'

# The paper's appendix says 5 iterations for ε = 0.67; the noise and the ε are those of 7.
evolve fid examples/cifar10.yaml 6.5 privacy.noise_multiplier=14.142135623730951 evolution.threshold=20 \
  evolution.iterations=7 evolution.degree='[0.98, 0.96, 0.94, 0.92, 0.90, 0.88, 0.86]'
judge fid --test "$DATA/made/cifar10/test.npz" --reference "$DATA/made/cifar10/train.npz" --metrics fidelity
row "FID at ε = 0.67" 7.9 - fid "metrics/fidelity/*/frechet"

# The threshold and the population of DPImageBench's configs/PE/cifar10_32_eps1.0.yaml and eps10.0 (565f8d7).
for epsilon in 1 10; do
  evolve "epsilon$epsilon" examples/cifar10.yaml 6.5 privacy="{epsilon: $epsilon, delta: 1e-5}" \
    evolution.threshold=$([ "$epsilon" = 1 ] && echo 15 || echo 2) evolution.population=60000
  judge "epsilon$epsilon" --test "$DATA/made/cifar10/test.npz" --reference "$DATA/made/cifar10/train.npz" \
    --metrics fidelity --no-one-vote
  train "epsilon$epsilon" "$DATA/made/cifar10/test.npz" --flip
done
row "accuracy at ε = 1" - 0.646 epsilon1 judged/resnet9
row "accuracy at ε = 10" - 0.753 epsilon10 judged/resnet9
row "FID at ε = 10" - 9.2 epsilon10 "metrics/fidelity/*/frechet"
table
exit
}
