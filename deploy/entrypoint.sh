#!/bin/sh
# The command of the image. numba takes compiled loops only from a folder that it can write to,
# which the image need not be: without this copy each start compiles them for most of a minute.
set -eu
if [ ! -e "$NUMBA_CACHE_DIR" ]; then
  { cp -R "${LOOPS:-/opt/broker-filter/loops}" "$NUMBA_CACHE_DIR.part" &&
    mv "$NUMBA_CACHE_DIR.part" "$NUMBA_CACHE_DIR"; } ||
    echo "broker-filter: no room in $NUMBA_CACHE_DIR: this start compiles its loops" >&2
fi
exec broker-filter "$@"
