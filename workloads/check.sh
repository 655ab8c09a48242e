#!/bin/sh
# Runs each command of expected.txt (lines that begin with "$ ") and compares
# what it prints, on both streams, and its exit status ("[N]" unless 0).
# RUN is put before each program, e.g. RUN=qemu-x86_64.
# After an intended change of output: ./check.sh --update, then read the diff.
set -u
cd "$(dirname "$0")" || exit 1
actual=$(mktemp) || exit 1
trap 'rm -f "$actual"' EXIT

run() {
    program=$1
    shift
    ${RUN:-} "bin/$program" "$@"
}

grep '^\$ ' expected.txt | while IFS= read -r line; do
    printf '%s\n' "$line"
    (eval "${line#??}") 2>&1 </dev/null
    status=$?
    [ "$status" = 0 ] || echo "[$status]"
done >"$actual"

if [ "${1:-}" = --update ]; then
    cp "$actual" expected.txt
elif diff -u expected.txt "$actual"; then
    echo "check: $(grep -c '^\$ ' expected.txt) commands, all as expected"
else
    echo "check: output differs from expected.txt" >&2
    exit 1
fi
