#!/usr/bin/env bash
# Run all tests that need a GPU, in less than five minutes on one.
#
#   tests/gpu/run.sh [ARGUMENTS OF PYTEST]
#
# PYTHON names the interpreter: one with corral, its `test` extra, and a torch that is built for CUDA. Exit codes are
# pytest's; 77 says that there is no GPU, or none that this torch can use; 124 that the five minutes were over.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

readonly NO_GPU=77 LIMIT=300

if [[ -z "${PYTHON:-}" ]]; then
    PYTHON=.venv/bin/python
    [[ -x "$PYTHON" ]] || PYTHON=python3
fi

if ! "$PYTHON" -c 'import corral, pytest' 2>/dev/null; then
    echo "tests/gpu/run.sh: $PYTHON has no corral or no pytest: run 'make test' first, or set PYTHON" >&2
    exit 1
fi
if ! found="$("$PYTHON" - <<'END'
import sys

try:
    import torch
except ImportError:
    sys.exit("there is no torch")
if not torch.version.cuda:
    sys.exit(f"torch {torch.__version__} is not built for CUDA")
if not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} sees no GPU")
names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
print(f"{len(names)} x {names[0]}, torch {torch.__version__}, CUDA {torch.version.cuda}")
END
)"; then
    echo "tests/gpu/run.sh: nothing was tested: there is no GPU to test on (see above)" >&2
    exit "$NO_GPU"
fi
echo "tests/gpu/run.sh: $found"

timeout --signal=INT --kill-after=10 "$LIMIT" \
    "$PYTHON" -m pytest tests/gpu -m gpu --timeout 120 --durations 5 "$@"
