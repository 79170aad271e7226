#!/bin/bash
# Start PostgreSQL, making it and the database POSTGRES_DB first when $PGDATA is empty.
set -euo pipefail

if [ ! -e "$PGDATA/PG_VERSION" ]; then
  initdb -D "$PGDATA" -U "$POSTGRES_USER" --auth-local=trust --auth-host=scram-sha-256 --pwfile=/dev/fd/3 --no-sync \
    -E UTF8 --locale=C.UTF-8 3<<< "$POSTGRES_PASSWORD"
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
  echo "CREATE DATABASE \"$POSTGRES_DB\"" | postgres --single -D "$PGDATA" postgres
fi
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp
