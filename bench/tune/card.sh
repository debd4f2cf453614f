#!/bin/sh
# The bars of gpuscope tune on the cards of CUDA_VISIBLE_DEVICES (all), within GPUSCOPE_SECONDS (540). Results are in $OUT as they
# come; one of them is table.txt, which is written again after each part.
#   bench/tune/card.sh bars      a part of the grid's time for the models of $GRIDS, beside the grid's best; and the four models
#                                that pytorch-autotune tunes too, each in the very seconds that it took
#   bench/tune/card.sh models    what of that is not in $BARS yet; then the 20 models of bench/tune/lanes.py, each in
#                                GPUSCOPE_BUDGET (60) seconds, and again in fresh processes
#   bench/tune/card.sh grids     the grids of the models of $GRIDS, here also MODEL:PARTS for a grid that so many cards share, and
#                                tune in its share of the time of each that is complete
#     On one H200 with 16 cores a run of these grids took 4 s uncompiled and, with its first compilation, 6 to 18 s: 220 s (gru-lm)
#     to 418 s (tabular) for the 36 of a factory without convolutions, and then 90 to 160 s for tune and the turns. Complete are
#     mlp-large, lstm-lm, dlrm-like, tabular, mlp-wide, gru-lm and decoder-tiny. A card continues a grid, such as llama-like, with
#       BARS=bars GRIDS=llama-like OUT=out bench/tune/card.sh grids      (bars: the output of the last call)
#       python -m bench.tune.grids --pack llama-like=out/quarter/llama-like      (once complete)
# $BARS names folders, with colons between them: ledgers with grids, and the output of an earlier call, which is continued.
# GRIDS (gpt-small,conv-small) are the models with a grid. pytorch-autotune can be given as a wheel in AUTOTUNE_WHEEL.
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-python3}
cards=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd, -)}
grids=${GRIDS-gpt-small,conv-small}
[ -n "${AUTOTUNE_WHEEL:-}" ] && export PYTHONPATH="$(realpath "$AUTOTUNE_WHEEL")${PYTHONPATH:+:$PYTHONPATH}"
bars="--quarter $grids --beside conv-large,gpt-small,conv-small,mlp-large"
others=llama-like,resnet50,bert-base,vit-b16,lstm-lm,unet-batch,gpt-medium,encoder-torch,convnext-like,gpt-wide
others=$others,gpt-tiny,mlp-small,dlrm-like,gru-lm,mlp-tiny,gpt-large
case ${1:-bars} in
bars) what=$bars ;;
models) what="$bars --models $others,gpt-small,conv-small,conv-large,mlp-large" ;;
grids) what="--grids $grids" ;;
*) echo "card.sh $1: it is bars, models or grids" >&2; exit 2 ;;
esac
exec "$python" -m bench.tune.lanes $what --out "${OUT:-.}" --cards "$cards" --seconds "${GPUSCOPE_SECONDS:-540}" \
  --budget "${GPUSCOPE_BUDGET:-60}" ${BARS:+--bars "$BARS"}
