#!/usr/bin/env bash
# Camelyon17 from the ImageNet model of cifar10.sh, by Private Evolution: Lin et al., ICLR 2024, section 5.1.2.
#
# Needs  camelyon17_v1.0 of WILDS, unpacked (10.7 GB packed); the checkpoint (1.1 GB) and Inception (95 MB), which are
#        fetched; a GPU of 16 GB; 80 GB of disk.
# Takes  19 million images of 10 DDIM steps: 84 hours of one A100 (178 GFLOP a step, a third of 312 TFLOP/s), 126 USD at
#        1.50 an hour. No calls to anybody.
source "$(dirname "$0")/common.sh"

{ # bash reads all of it before it begins
needs 80 16 16 imagenet64_cond_270M_250K.pt pt_inception-2015-12-05-6726825d.pth
data camelyon17
change private.path="$DATA/made/camelyon17/train"
tiny api.model="$(random improved)" api.size=8 private.size=8 api.device=cpu evolution.population=24 \
  evolution.iterations=1 evolution.degree=0.8 evolution.lookahead=1 embedding='{kind: pixels}'

evolve run examples/camelyon17.yaml 64
train run "$DATA/made/camelyon17/test" --flip
row "accuracy at ε = 10" 0.803 - run judged/resnet9
table
exit
}
