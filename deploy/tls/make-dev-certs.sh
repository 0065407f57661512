#!/bin/sh
# Development certificates for gpusonde: an authority, one collector, agents, a reader and an admin.
#
#   make-dev-certs.sh DIRECTORY [--collector HOST]... [--agent ID]... [--days N]
#
# Writes DIRECTORY/ca.pem, collector.pem, agent-ID.pem, reader.pem, admin.pem and a .key beside each. The authority is
# kept and used again: run it again to renew or to add agents. Certificates of agents whose id is not named stay as they
# are. Not for production: the authority's key lies unencrypted beside the others.
#
# The names are gpusonde's (docs/security.md): the role and the name stand in a URI of the subject alternative names,
# gpusonde://agent/ID, gpusonde://reader/NAME, gpusonde://admin/NAME; the collector has its host names there.
set -eu
umask 077

usage() {
    echo "usage: make-dev-certs.sh DIRECTORY [--collector HOST]... [--agent ID]... [--days N]" >&2
    exit 2
}

[ $# -ge 1 ] || usage
case $1 in -*) usage ;; esac
directory=$1
shift
hosts="" agents="" days=90
while [ $# -ge 2 ]; do
    # Names go into a configuration file of openssl: nothing but their own characters may stand in them.
    case $2 in *[!A-Za-z0-9._:@-]* | "") echo "make-dev-certs.sh: '$2' is no name" >&2 && exit 2 ;; esac
    case $1 in
        --collector) hosts="$hosts $2" ;;
        --agent) agents="$agents $2" ;;
        --days) days=$2 ;;
        *) usage ;;
    esac
    shift 2
done
[ $# -eq 0 ] || usage
hosts=${hosts:-"localhost 127.0.0.1"}
agents=${agents:-"$(hostname)"}

mkdir -p "$directory"
cd "$directory"
work=$(mktemp -d ./work.XXXXXX)
trap 'rm -rf "$work"' EXIT

if [ ! -f ca.pem ] || [ ! -f ca.key ]; then
    openssl ecparam -name prime256v1 -genkey -noout -out ca.key
    printf '[req]\ndistinguished_name=dn\nx509_extensions=ext\nprompt=no\n[dn]\nCN=gpusonde development authority\n' >"$work/ca.cnf"
    printf '[ext]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n' >>"$work/ca.cnf"
    openssl req -new -x509 -sha256 -days 3650 -key ca.key -config "$work/ca.cnf" -out ca.pem
fi

# issue FILE COMMON_NAME USAGE ALTERNATIVE_NAMES
issue() {
    openssl ecparam -name prime256v1 -genkey -noout -out "$work/key"
    printf '[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nCN=%s\n' "$2" >"$work/request.cnf"
    openssl req -new -sha256 -key "$work/key" -config "$work/request.cnf" -out "$work/request"
    printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=%s\nsubjectAltName=%s\n' \
        "$3" "$4" >"$work/extensions"
    openssl x509 -req -sha256 -days "$days" -in "$work/request" -CA ca.pem -CAkey ca.key \
        -set_serial "0x$(openssl rand -hex 16)" -extfile "$work/extensions" -out "$work/certificate" 2>"$work/said" ||
        { cat "$work/said" >&2 && exit 1; }
    # Renamed over the old ones: whoever reads them meanwhile finds the old or the new, and waits until the pair fits.
    mv "$work/key" "$1.key"
    mv "$work/certificate" "$1.pem"
    chmod 644 "$1.pem"
    echo "$directory/$1.pem"
}

names=""
for host in $hosts; do
    case $host in
        *:* | *[0-9].[0-9]*.*[0-9]) case $host in *[!0-9.:a-fA-F]*) kind=DNS ;; *) kind=IP ;; esac ;;
        *) kind=DNS ;;
    esac
    names="${names:+$names,}$kind:$host"
done
chmod 644 ca.pem
issue collector "gpusonde collector" serverAuth "$names"
for agent in $agents; do
    issue "agent-$agent" "agent" clientAuth "URI:gpusonde://agent/$agent"
done
issue reader "reader" clientAuth "URI:gpusonde://reader/reader"
issue admin "admin" clientAuth "URI:gpusonde://admin/admin"
