#!/usr/bin/env bash
# Makes sure that the browser tests find Chromium: installs Debian's where it may, says what to do where it may not.
set -euo pipefail
command -v chromium >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing Chromium for the browser tests …"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
else
  echo "The browser tests need Chromium at /usr/bin/chromium: 'sudo apt-get install chromium'." >&2
  exit 1
fi
