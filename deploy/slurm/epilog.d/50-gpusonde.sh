#!/bin/sh
# Slurm epilog: takes a job out of the files that the prolog wrote. It looks into every file, because Slurm does not
# tell an epilog the GPUs in every version, and never fails, because an epilog that fails drains the node.
#
# /etc/default/gpusonde-slurm may set GPUSONDE_JOBS_DIR, as for the prolog.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
defaults=${GPUSONDE_DEFAULTS:-/etc/default/gpusonde-slurm}
# shellcheck source=/dev/null
[ ! -r "$defaults" ] || . "$defaults"
folder=${GPUSONDE_JOBS_DIR:-/run/gpusonde/jobs}

say() {
    logger -t gpusonde-epilog -- "$*" 2>/dev/null || echo "gpusonde-epilog: $*" >&2
}

job=${SLURM_JOB_ID:-}
case $job in '' | *[!0-9]*) exit 0 ;; esac
[ -d "$folder" ] || exit 0

umask 022
# In a shell of its own: a redirection that fails ends this one.
if ! (: >>"$folder/.lock") 2>/dev/null; then
    say "$folder cannot be written; job $job keeps its GPUs"
    exit 0
fi
exec 9>>"$folder/.lock"
flock -w 30 9 || say "$folder/.lock is held for 30 s; going on without it"
for file in "$folder"/*; do
    [ -f "$file" ] || continue
    grep -qx -e "$job" "$file" || continue
    new=$folder/.${file##*/}.new
    if grep -vx -e "$job" "$file" >"$new"; then
        mv -f "$new" "$file" || say "$file cannot be written"
    else
        rm -f "$new" "$file"
    fi
done
exit 0
