#!/usr/bin/env bash
# usage: tests/platforms/versions.sh lowest|highest FOLDER [pytest arguments]
# The core's tests with the lowest versions that pyproject.toml allows (lowest.txt: Python 3.10 where there is one, else
# this Python) or the highest that PyPI has (Python 3.14 where there is one). An interpreter is taken from the PATH, from
# uv or from pyenv, or PYTHON names it. FOLDER is kept; nothing outside of it is changed. Versions are printed.
set -euo pipefail
which=${1:?lowest or highest}
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "${2:?the folder to build in}"
folder=$(cd "$2" && pwd)
shift 2
case $which in
lowest) wanted=3.10 pins=(-c "$root/tests/platforms/lowest.txt") ;;
highest) wanted=3.14 pins=() ;;
*) echo "lowest or highest, got $which" >&2 && exit 2 ;;
esac
python=${PYTHON:-$(command -v "python$wanted" || uv python find -q --no-python-downloads "$wanted" 2>/dev/null ||
  ls -d "${PYENV_ROOT:-$HOME/.pyenv}/versions/$wanted".*/bin/python 2>/dev/null | tail -1 || true)}
"${python:-false}" -c "" 2>/dev/null || python=python3
[ -d "$folder/venv" ] || "$python" -m venv "$folder/venv"
. "$folder/venv/bin/activate"
pip install -q "$root" pytest hypothesis psutil safetensors narwhals "${pins[@]}"
python - <<'END'
import sys
from importlib.metadata import version

names = ["numpy", "scipy", "scikit-learn", "joblib", "threadpoolctl", "tqdm"]
print("Python", sys.version.split()[0], *(f"{name} {version(name)}" for name in names))
END
cd "$folder"
python "$root/tests/platforms/core_tests.py" "$@"
