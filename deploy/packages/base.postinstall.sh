#!/bin/sh
# The groups and folders that the units need. DPKG_ROOT is set where a system is put together inside another one.
set -e
systemd-sysusers --root="${DPKG_ROOT:-/}" gpusonde.conf
systemd-tmpfiles --root="${DPKG_ROOT:-/}" --create gpusonde.conf
