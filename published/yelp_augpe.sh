#!/usr/bin/env bash
# Yelp reviews by Aug-PE: Xie et al., ICML 2024 (arXiv 2403.01749), with a language model on this machine.
#
# Needs  Aug-PE's train.csv (1.2 GB), as yelp_train.csv, and its data/yelp/test.csv, as yelp_test.csv;
#        Qwen/Qwen3-4B-Instruct-2507 (8 GB) and stsb-roberta-base-v2 (0.5 GB), which are fetched; a GPU of 24 GB; 30 GB.
# Takes  the embedding of 1.9 million reviews and 80,000 texts of the model: 3 hours of one A100, 5 USD at 1.50 an hour.
# The noise is the paper's to 1 %; its accuracies are by a fine-tuned RoBERTa, so they are not in the table. Ours:
# `pe evaluate RUN --test build/data/made/yelp/test.csv`, which embeds the 1.9 million reviews again.
source "$(dirname "$0")/common.sh"

{ # bash reads all of it before it begins
needs 30 24 24 Qwen/Qwen3-4B-Instruct-2507 sentence-transformers/stsb-roberta-base-v2
data yelp
stars='["Review Stars: 1.0", "Review Stars: 2.0", "Review Stars: 3.0", "Review Stars: 4.0", "Review Stars: 5.0"]'
change private.path="$DATA/made/yelp/train.csv" private.label_column=label2 private.classes="$stars" \
  private.declared_size=1939290 privacy.delta=3.56e-8 \
  api.prompts='"Business: {business}. {label}. Keyword: {keyword}."'
tiny private.declared_size=100 api.model="$(random causal)" api.max_tokens=8 api.device=cpu embedding.model="$(random encoder)" \
  evolution.population=10 evolution.iterations=1 evolution.degree=0.5 evolution.offspring=1 evolution.keep=none \
  evolution.initial_variations=1

evolve run examples/augpe.yaml 8
row "noise multiplier at ε = 1, δ = 1/(n ln n)" 15.34 - run certificate/releases/0/noise_multiplier
table
exit
}
