#!/bin/sh
# What runs goes on with the new files. A first installation starts nothing: nobody has configured it yet.
set -e
[ -d /run/systemd/system ] && [ -z "$DPKG_ROOT" ] || exit 0
systemctl daemon-reload
systemctl try-restart @UNIT@
