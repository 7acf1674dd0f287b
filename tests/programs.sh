#!/usr/bin/env bash
# Makes sure that the tests find what no Python package brings, Chromium and a TURN server: installs Debian's where it may, says what
# to do where it may not.
set -euo pipefail
declare -A packages=([chromium]=chromium [turnserver]=coturn)
missing=()
for program in "${!packages[@]}"; do
  command -v "$program" >/dev/null || missing+=("${packages[$program]}")
done
[ ${#missing[@]} = 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing for the tests: ${missing[*]} …"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
else
  echo "The tests need Chromium at /usr/bin/chromium and coturn's turnserver: 'sudo apt-get install ${missing[*]}'." >&2
  exit 1
fi
