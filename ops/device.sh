#!/usr/bin/env bash
# Prints what `make run` uses on this machine: gpu, if there is an NVIDIA GPU whose driver answers, else cpu.
# requirements/gpu.txt is for Linux on x86-64.
if [ "$(uname -sm)" = "Linux x86_64" ] && timeout 20 nvidia-smi --list-gpus 2>/dev/null | grep -q '^GPU '; then
    echo gpu
else
    echo cpu
fi
