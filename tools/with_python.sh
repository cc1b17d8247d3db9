#!/bin/sh
# Runs a Python script with a Python that is new enough: the one that PYTHON names, else the first of the usual names,
# else one that uv finds or fetches.
set -eu

new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
seen=''
for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
    command -v "$name" >/dev/null 2>&1 || continue
    if "$name" -c "$new_enough" 2>/dev/null; then
        exec "$name" "$@"
    fi
    # A name may exist without being able to run (a version manager's, for a version that is not chosen).
    version=$("$name" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || continue
    seen="$seen $name=$version"
done

if [ -z "${PYTHON:-}" ] && command -v uv >/dev/null 2>&1; then
    exec uv run --quiet --no-project --python '>=3.11' python "$@"
fi

{
    echo "Python 3.11 or newer is needed, and ${PYTHON:-none of the usual names} is not one.${seen:+ Found only:$seen.}"
    echo "Install one (python.org, your package manager, or uv), or name it: make PYTHON=/path/to/python3.12 …"
} >&2
exit 1
