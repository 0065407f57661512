#!/bin/sh
# Slurm prolog: tells the gpusonde agent (and dcgm-exporter, if it reads the same folder) which job holds which GPU.
#
# Writes one file per GPU of the job, named by the GPU's UUID, with one job id per line. It never fails, because a
# prolog that fails drains the node.
#
# /etc/default/gpusonde-slurm may set:
#   GPUSONDE_JOBS_DIR    folder of the files, as the agent's jobs.slurm_mapping_dir (/run/gpusonde/jobs)
#   GPUSONDE_FILE_NAMES  uuid, or index for dcgm-exporter: then files are named by the numbers that Slurm gives
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
defaults=${GPUSONDE_DEFAULTS:-/etc/default/gpusonde-slurm}
# shellcheck source=/dev/null
[ ! -r "$defaults" ] || . "$defaults"
folder=${GPUSONDE_JOBS_DIR:-/run/gpusonde/jobs}
driver=${GPUSONDE_DRIVER_DIR:-/proc/driver/nvidia}
file_names=${GPUSONDE_FILE_NAMES:-uuid}

say() {
    logger -t gpusonde-prolog -- "$*" 2>/dev/null || echo "gpusonde-prolog: $*" >&2
}

# The GPUs of the job, one per line: UUIDs where Slurm gives them (MIG), else numbers of /dev/nvidiaN.
gpus_of_job() {
    case ${CUDA_VISIBLE_DEVICES:-} in
        *MIG-* | *GPU-*) list=$CUDA_VISIBLE_DEVICES ;;
        *) list=${SLURM_JOB_GPUS:-${CUDA_VISIBLE_DEVICES:-}} ;;
    esac
    echo "$list" | tr ',' '\n' | while read -r entry; do
        case $entry in
            *[!0-9-]* | '' | -*) [ -z "$entry" ] || echo "$entry" ;;
            *-*) seq "${entry%-*}" "${entry#*-}" | head -n 128 ;;
            *) echo "$entry" ;;
        esac
    done
}

# What the file of a GPU is called.
name_of() {
    case $1 in
        MIG-* | GPU-*)
            case $1 in *[!A-Za-z0-9-]*) return 1 ;; esac
            echo "$1"
            return
            ;;
        *[!0-9]* | '') return 1 ;;
    esac
    if [ "$file_names" = uuid ]; then
        uuid=$(cat "$driver"/gpus/*/information 2>/dev/null | awk -v number="$1" '
            $1 == "GPU" && $2 == "UUID:" { uuid = $3 }
            $1 == "Device" && $2 == "Minor:" && $3 == number { print uuid; exit }')
        # The kernel module gives question marks until something has opened the GPU.
        case $uuid in
            '' | *[!A-Za-z0-9-]*) ;;
            *)
                echo "$uuid"
                return
                ;;
        esac
    fi
    echo "$1"
}

job=${SLURM_JOB_ID:-}
case $job in '' | *[!0-9]*) exit 0 ;; esac
gpus=$(gpus_of_job)
[ -n "$gpus" ] || exit 0

umask 022
# In a shell of its own: a redirection that fails ends this one.
if ! (mkdir -p "$folder" && : >>"$folder/.lock") 2>/dev/null; then
    say "$folder cannot be written; the GPUs of job $job have no owner"
    exit 0
fi
names=$(for gpu in $gpus; do name_of "$gpu"; done)
exec 9>>"$folder/.lock"
# Two jobs may share a GPU and begin at once; on a busy host many may.
flock -w 30 9 || say "$folder/.lock is held for 30 s; going on without it"
for name in $names; do
    file=$folder/$name
    # The whole file at once: a reader sees the old jobs or the new ones.
    if ! (
        [ ! -f "$file" ] || grep -vx -e "$job" "$file"
        echo "$job"
    ) >"$folder/.$name.new" || ! mv -f "$folder/.$name.new" "$file"; then
        say "$file cannot be written"
    fi
done
exit 0
