#!/usr/bin/env bash
# One GPU, checked in minutes: the conformance suite on it (which compiles the kernels and captures graphs), then a model of random weights in the shape
# of Llama 3 8B against the limits of memory and matrix products that are measured in the same run. Writes JSON; exit code 1 when
# a check failed or less than 80% of a limit was reached.
#   scripts/gpu_check.sh                        needs llmx, the platform's package and llmx-kernels-triton in this environment
#   scripts/gpu_check.sh --platform rocm --output rocm.json
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" -m benchmarks.gpu_check "$@"
