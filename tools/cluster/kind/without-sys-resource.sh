#!/bin/sh
# runc for an engine that lacks CAP_SYS_RESOURCE itself: takes it from the list that a privileged container asks
# for, which runc would otherwise refuse as a whole.
previous=
specification=
for argument; do
  case $previous in
  --bundle) specification=$argument/config.json ;;
  --process) specification=$argument ;;
  esac
  previous=$argument
done
if [ -n "$specification" ]; then sed -i 's/,"CAP_SYS_RESOURCE"//g' "$specification"; fi
exec runc "$@"
