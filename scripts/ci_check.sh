#!/usr/bin/env bash
# What the GitHub Action runs: `campo-onnx check` with the action's inputs, which come as environment
# variables, and its report for the job's summary page.
set -euo pipefail

words=(check --github)
if [[ -n "${CHECK_MIXED:-}" || -n "${CHECK_AGAINST:-}" ]]; then
    [[ -n "${CHECK_AGAINST:-}" ]] && words+=(--against "$CHECK_AGAINST")
    [[ -n "${CHECK_BASELINE:-}" ]] && words+=(--baseline "$CHECK_BASELINE")
    # One argument a line, so that a path may hold blanks.
    while IFS= read -r word; do
        [[ -n "$word" ]] && words+=("$word")
    done <<< "${CHECK_ARGS:-}"
else
    words+=(--policy "${CHECK_POLICY:-campo.toml}")
fi
[[ -n "${CHECK_JUNIT:-}" ]] && words+=(--junit "$CHECK_JUNIT")
if [[ -n "${CHECK_MIXED:-}" ]]; then
    words+=(-- "$CHECK_MIXED")
fi

report=$(mktemp)
trap 'rm -f "$report"' EXIT
status=0
campo-onnx "${words[@]}" > "$report" || status=$?
cat "$report"

if [[ -n "${GITHUB_STEP_SUMMARY:-}" ]]; then
    {
        echo '### campo-onnx check'
        echo '```'
        grep -v '^::' "$report" || true
        echo '```'
    } >> "$GITHUB_STEP_SUMMARY"
fi
if [[ -n "${GITHUB_OUTPUT:-}" ]]; then
    echo "exit-code=$status" >> "$GITHUB_OUTPUT"
fi
exit "$status"
