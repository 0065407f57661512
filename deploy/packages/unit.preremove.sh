#!/bin/sh
# Debian says what is done in words, rpm by how many are left.
set -e
[ -d /run/systemd/system ] && [ -z "$DPKG_ROOT" ] || exit 0
case "$1" in
    remove | 0) systemctl disable --now @UNIT@ ;;
esac
