# What the scripts of this folder share; each sources it with its own arguments. README.md says how to use them.
#
#   --check   what is missing (data, weights, disk, GPU), and what the run will ask for and cost; nothing is made
#   --tiny    every step with random weights and a little data, in minutes on a processor
#   DATA      the folder of the publishers' files, and of what is made of them, below made/; default: build/data
#   OUT       the folder of the runs; default: build/published/NAME. A script that was stopped goes on where it was.
set -euo pipefail
NAME=$(basename "$0" .sh)
[ -z "${DATA:-}" ] || DATA=$(realpath -m "$DATA")
[ -z "${OUT:-}" ] || OUT=$(realpath -m "$OUT")
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
MODE=${1:-run}
MODE=${MODE#--}
case $MODE in
  run) DATA=${DATA:-build/data} OUT=${OUT:-build/published/$NAME} ;;
  check) DATA=${DATA:-build/data} OUT=$(mktemp -d) && trap 'rm -rf "$OUT"' EXIT ;;
  tiny) OUT=${OUT:-build/published}/$NAME-tiny DATA=$OUT/data && rm -rf "$OUT" ;;
  *) echo "usage: $0 [--check | --tiny]" >&2 && exit 2 ;;
esac
CHANGES=() TINY=() MISSING=0
[ "$MODE" = check ] || mkdir -p "$DATA" "$OUT"
: >"$OUT/rows.tsv"

# needs DISK MEMORY GPU [WEIGHTS …]: gigabytes of each, 0: none; models of the hub, or files of torch.hub's.
needs() {
  [ "$MODE" = check ] || return 0
  python -m published.check room "$1" "$2" "$3" || MISSING=1
  [ $# -lt 4 ] || python -m published.check weights "${@:4}"
}

# data NAME: makes $DATA/made/NAME of the files that its publisher gives.
data() {
  case $MODE in
    check) python -m published.data "$1" "$DATA" --check || MISSING=1 ;;
    tiny) python -m published.data "$1" "$DATA" --tiny ;;
    run) [ -d "$DATA/made/$1" ] || python -m published.data "$1" "$DATA" ;;
  esac
}

# change KEY=VALUE …: of the recipe, for all runs that follow. tiny: the same with --tiny alone, over all others;
# for_check: with --check alone, where a plan would need what is not made or fetched yet.
change() {
  for each; do CHANGES+=(--set "$each"); done
}
for_check() {
  [ "$MODE" != check ] || change "$@"
}
tiny() {
  [ "$MODE" = tiny ] || return 0
  for each; do TINY+=(--set "$each"); done
}

# random NAME: makes a model of random weights for --tiny, and prints its place.
random() {
  [ "$MODE" != tiny ] || python -m published.tiny "$1" "$OUT/$1"
}

# evolve RUN RECIPE SAMPLES_PER_SECOND [KEY=VALUE …]: `pe run`, or with --check `pe plan`, which tells time and cost.
evolve() {
  local run=$1 recipe=$2 rate=$3 own=()
  shift 3
  for each; do own+=(--set "$each"); done
  if [ "$MODE" = check ]; then
    pe plan "$recipe" "${CHANGES[@]}" "${own[@]}" ${rate:+--samples-per-second "$rate"} --json 2> >(grep "^pe:" >&2) |
      python -m published.check plan "$run" || MISSING=1
  else
    pe run "$recipe" "${CHANGES[@]}" "${own[@]}" "${TINY[@]}" --out "$OUT/$run" --resume --quiet
  fi
}

# judge RUN [OPTION …]: `pe evaluate`, once.
judge() {
  [ "$MODE" = check ] || [ -f "$OUT/$1/confidential/metrics.json" ] || pe evaluate "$OUT/$1" --quiet "${@:2}"
}

# train RUN TEST [OPTION …]: ResNet-9 on the run's images, tested on real ones, once.
train() {
  local quick=()
  [ "$MODE" != tiny ] || quick=(--epochs 1)
  [ "$MODE" = check ] || [ -f "$OUT/$1/confidential/judged.json" ] ||
    python -m published.judge "$OUT/$1" "$2" "${@:3}" "${quick[@]}"
}

# row MEASURE PAPER BENCH RUN KEY: a line of the table at the end; -: the paper, or the bench, has no such number.
row() {
  local IFS=$'\t'
  echo "$*" >>"$OUT/rows.tsv"
}

table() {
  [ "$MODE" != check ] || exit "$MISSING"
  python -m published.table "$OUT" | tee "$OUT/table.md"
}
