#!/usr/bin/env bash
# Measure the records of results/ on the GPUs of this machine anew; each has a log beside it.
#
#     benchmarks/records.sh FOLDER [PATTERN]
#
# FOLDER is a new folder for the records. PATTERN (of grep -E) selects them by their names; by default all are measured.
# TPUTFIND is the command, such as "python3 -m tputfind" in a checkout.
set -uo pipefail
models=$(realpath "$(dirname "$0")/../tests/models")
mkdir -p "$1"
cd "$1" || exit
pattern=${2:-.}

# Measure one record: its name, its limit in seconds, and the arguments of tputfind.
record() {
    local name=$1 limit=$2 start=$SECONDS
    shift 2
    grep -qE "$pattern" <<<"$name" || return 0
    mkdir -p "$(dirname "$name")"
    # shellcheck disable=SC2086  # the command may be several words
    timeout -k 5 "$limit" ${TPUTFIND:-tputfind} "$@" --save "$name.json" >"$name.log" 2>&1
    echo "$name: exit code $?, $((SECONDS - start)) s"
}

record default/resnet50-fp16 200 resnet50 --dtype fp16 --no-save
record default/resnet50-fp16-nhwc 200 resnet50 --dtype fp16 --layout nhwc --no-save
record default/vit_b_16-fp16 200 vit_b_16 --dtype fp16 --no-save
record default/mobilenet_v3_large-fp16 200 mobilenet_v3_large --dtype fp16 --no-save
record default/efficientnet_b0-fp16 200 efficientnet_b0 --dtype fp16 --no-save
record default/bert-fp16 300 hf:bert --dtype fp16 --no-save
cp "$models/train_gan.py" .
record default/two_networks-train 200 train_gan.py:step --no-save
record default/resnet50-amp-bf16-train 200 resnet50 --phase train --dtype amp-bf16 --optimizer adamw --no-save
modes=(--mode eager,compile,cudagraph --no-save)
record recipes/resnet50-fp16 400 resnet50 --dtype fp16 --layout nchw,nhwc --batch-sizes 256 "${modes[@]}"
record recipes/vit_b_16-fp16 300 vit_b_16 --dtype fp16 --batch-sizes 256 "${modes[@]}"
record recipes/mobilenet_v3_large-fp16 300 mobilenet_v3_large --dtype fp16 --batch-sizes 1,256 "${modes[@]}"
record clocks/resnet50-fp16-batch-1 120 clocks resnet50 --dtype fp16 --batch-size 1
record tune/resnet50-fp16 560 tune resnet50 --dtype fp16 --budget 8min --no-save
record tune/mobilenet_v3_large-fp16 240 tune mobilenet_v3_large --dtype fp16 --budget 3min --no-save
record tune/vit_b_16-fp16 240 tune vit_b_16 --dtype fp16 --budget 3min --no-save
record tune/mobilenetv4-fp16 240 tune timm:mobilenetv4_conv_medium --dtype fp16 --budget 3min --no-save
if [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ]; then  # a daemon of the multi-process service runs
    record recipes/resnet50-fp16-instances 200 resnet50 --dtype fp16 --instances 1,2,4 --batch-sizes 1,32 --no-save
fi
if [ "$(nvidia-smi --list-gpus 2>/dev/null | wc -l)" -ge 2 ]; then
    two=(--phase train --optimizer adamw --dtype amp-bf16 --gpus 2 --no-save)
    record two/resnet50-ddp 300 resnet50 "${two[@]}" --parallel ddp
    record two/resnet50-fsdp 300 resnet50 "${two[@]}" --parallel fsdp
    record two/vit_b_16-ddp 300 vit_b_16 "${two[@]}" --parallel ddp
    record two/vit_b_16-fsdp 300 vit_b_16 "${two[@]}" --parallel fsdp
    record two/resnet50-all-busy 300 resnet50 --dtype fp16 --mode cudagraph --batch-sizes 1,32,256 --device all \
        --all-busy --no-save
    record two/resnet50-tune 300 tune resnet50 --dtype fp16 --budget 4min --device all --no-save
fi
