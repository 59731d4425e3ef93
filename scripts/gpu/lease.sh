#!/usr/bin/env bash
# Half an hour on an offline GPU host: installs what was carried, measures in order of value, brings it home.
#
#   bash scripts/gpu/lease.sh [--budget-s 540] [--out FOLDER] [--resume ARCHIVE] [-- ARGUMENTS OF benchmarks.gpu_session]
#
# Type it again, with --resume and what the call before brought home, until it says "all done". A call that is ended
# from outside still packs what is finished; only the step it was in is lost. Before, where there is a network:
#   python -m scripts.gpu.bundle GRAPH.onnx ...
set -euo pipefail
cd "$(dirname "$0")/../.."

budget_s=540 out=lease_out resume= site=${CAMPO_SITE:-/tmp/site}
while [ $# -gt 0 ]; do
    case $1 in
        --budget-s) budget_s=$2; shift 2 ;;
        --out) out=$2; shift 2 ;;
        --resume) resume=$2; shift 2 ;;
        --) shift; break ;;
        *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
work=$out/work
mkdir -p "$work"

# Pieces of one archive join in the order of their names.
if [ -n "$resume" ]; then
    pieces=("$resume"*)
    [ -e "${pieces[0]}" ] || { echo "nothing begins with $resume: name the archive that came home" >&2; exit 2; }
    cat "${pieces[@]}" | tar --extract --gzip --directory "$work"
fi

folders=(.gpu/[0-9]*/)
[ ! -d "${folders[0]}" ] || python3 scripts/gpu/install.py "$site" "${folders[@]}"
export PYTHONPATH="$site:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
graphs=("$site"/graphs/*.onnx)
[ -e "${graphs[0]}" ] || graphs=()

session=
bring_home() {
    code=$?
    trap - EXIT
    [ -z "$session" ] || { kill "$session" 2>/dev/null && wait "$session" 2>/dev/null; } || true
    for folder in "$work"/session_*/; do
        [ -d "$folder" ] || continue
        name=$(basename "$folder")
        rm -f "$out/$name.tar.gz."*
        # A step's file is written beside and renamed: it is complete or absent.
        tar --create --gzip --directory "$work" --exclude .running --exclude '*.draft*' "$name" \
            | split --bytes=15M --numeric-suffixes - "$out/$name.tar.gz."
        echo "to go on: bash scripts/gpu/lease.sh --resume $out/$name.tar.gz"
    done
    exit "$code"
}
trap bring_home EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

python3 -m benchmarks.gpu_session --quick --work "$work" --limit-s "$budget_s" "$@" "${graphs[@]}" &
session=$!
wait "$session"
session=
