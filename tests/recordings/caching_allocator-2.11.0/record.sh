#!/bin/sh
# Records every file of this folder anew. TORCH: the folder of the installed package torch 2.11.0
# (a CUDA build); CUDA: a toolkit of the same major version, for its headers. No GPU is needed.
set -e
cd "$(dirname "$0")"
program=$(mktemp)
g++ -std=c++20 -O1 -rdynamic record.cpp -I"$TORCH/include" -I"$CUDA/include" \
    -L"$TORCH/lib" -lc10_cuda -lc10 -L"$CUDA/lib64" -o "$program"
export LD_LIBRARY_PATH="$TORCH/lib:$CUDA/lib64"
record() { PYTORCH_ALLOC_CONF=$4 "$program" "$2" "$3" > "$1.csv"; }
#      file                MiB    seed  PYTORCH_ALLOC_CONF
record default            100000  1  ""
record retries            1500    2  ""
record expandable         100000  3  "expandable_segments:True"
record expandable_retries 1500    4  "expandable_segments:True"
record max_split          1500    5  "max_split_size_mb:40"
record max_split_rounding 1500    6  "max_split_size_mb:32,max_non_split_rounding_mb:64"
record garbage            2000    7  "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9"
record roundup_list       100000 11  "roundup_power2_divisions:[1:16,4:4,32:2,>:8]"
record large_segment      2500   12  "large_segment_size_mb:64"
record expandable_large   2500   13  "expandable_segments:True,large_segment_size_mb:64"
record expandable_split   3000   14  "expandable_segments:True,max_split_size_mb:40"
