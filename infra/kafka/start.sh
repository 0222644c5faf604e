#!/usr/bin/env bash
# Starts the broker of server.properties; formats its data folder first where it is new.
set -euo pipefail

bin=${KAFKA_HOME:-/opt/kafka}/bin
settings=$(cd "$(dirname "$0")" && pwd)/server.properties

if [ ! -e "$KAFKA_DATA_FOLDER/meta.properties" ]; then
  # SCRAM users live in the cluster's metadata: the first one has to be there before the broker asks for it.
  # In a file: a command line can be read by everybody on this host.
  first_user=$(umask 077 && mktemp)
  printf '%s\n' --add-scram "SCRAM-SHA-256=[name=admin,password=$KAFKA_ADMIN_PASSWORD]" > "$first_user"
  "$bin/kafka-storage.sh" format --cluster-id "$("$bin/kafka-storage.sh" random-uuid)" --config "$settings" \
    "@$first_user" || { rm -f "$first_user"; exit 1; }
  rm -f "$first_user"
fi
exec "$bin/kafka-server-start.sh" "$settings"
