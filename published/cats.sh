#!/usr/bin/env bash
# Photographs of two cats from Stable Diffusion v1-4, by Private Evolution: Lin et al., ICLR 2024, section 5.1.3.
#
# Needs  cat-cookie-doudou.zip of Kaggle; CompVis/stable-diffusion-v1-4 (5 GB) and Inception (95 MB), which are fetched;
#        a GPU of 12 GB; 20 GB of disk.
# Takes  23,600 images of 512×512, 30 to 50 steps with guidance: 4 hours of one A100 (1.6 TFLOP a step, a third of 312
#        TFLOP/s), 6 USD at 1.50 an hour. No calls to anybody.
# The paper shows pictures and states no number; look at evolution.png beside its figure 5.
source "$(dirname "$0")/common.sh"

{ # bash reads all of it before it begins
needs 20 8 12 CompVis/stable-diffusion-v1-4 pt_inception-2015-12-05-6726825d.pth
data cats
change private.path="$DATA/made/cats"
tiny api.model="$(random stable_diffusion)" api.size=32 private.size=32 api.steps=4 api.device=cpu \
  api.safety_checker=false evolution.population=8 evolution.iterations=1 evolution.degree=0.8 evolution.lookahead=1 \
  private.declared_size=20 embedding='{kind: pixels}'

evolve run examples/cats.yaml 1.7
row "ε at δ = 0.001" 6.62 - run certificate/epsilon
table
exit
}
