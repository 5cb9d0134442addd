#!/usr/bin/env bash
# LSUN bedrooms by evolved captions, drawn: Wang et al., NeurIPS 2025 (SPTI, arXiv 2506.07555), its table of FIDs.
#
# Needs  pcuenq/lsun-bedrooms of the hub (4 GB of Parquet); stabilityai/sdxl-turbo (7 GB) and Inception (95 MB), which are
#        fetched; OPENAI_API_KEY; a GPU of 16 GB; 60 GB of disk.
# Takes  22,000 captions of a chat model (1.80 USD) and as many drawings of 2 steps: an hour of one A100; for the FID
#        120 GB of memory, since it reads all records. It is of 2,000 images, so higher than one of as many as there are.
source "$(dirname "$0")/common.sh"

{ # bash reads all of it before it begins
needs 60 120 16 stabilityai/sdxl-turbo pt_inception-2015-12-05-6726825d.pth
data lsun_bedroom
change private.path="$DATA/made/lsun_bedroom/train"
for_check embedding='{kind: pixels}'
tiny private.size=32 private.declared_size=30 embedding='{kind: pixels}' evolution.population=8 evolution.iterations=1 \
  evolution.degree=0.4 api.captions="{kind: causal_lm, model: $(random causal), prompts: a bedroom, max_tokens: 8}" \
  api.draw="{kind: diffusion, model: $(random stable_diffusion), prompts: '{caption}', steps: 2, size: 32, \
  safety_checker: false, device: cpu}"

evolve run published/captions_lsun.yaml 7
judge run --test "$DATA/made/lsun_bedroom/test" --metrics fidelity
row "FID at ε = 1" 26.71 - run "metrics/fidelity/*/frechet"
table
exit
}
