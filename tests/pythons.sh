#!/bin/sh
# Python 3.14 and 3.15 of Debian forky, for tests, where no version manager has them: into a folder outside the project.
#   sh tests/pythons.sh [FOLDER]        default: $GPUSCOPE_TEST_PYTHONS, else ~/.cache/gpuscope-pythons
# Needs root and apt; 270 MB, about a minute. FOLDER/bin/python3.14 and python3.15 start them without chroot.
set -eu
folder=${1:-${GPUSCOPE_TEST_PYTHONS:-$HOME/.cache/gpuscope-pythons}}
[ -x "$folder/bin/python3.15" ] && exit 0
[ "$(id -u)" = 0 ] || { echo "pythons.sh: only root can run debootstrap" >&2; exit 1; }
command -v debootstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap
mirror=$(sed -n 's/^URIs: *\([^ ]*\/debian\)\/* *$/\1/p; s/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\/debian\)\/* .*/\2/p' \
  /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
root=$folder/forky
trap 'exit 1' INT TERM
mountpoint -q "$root/proc" && umount "$root/proc"  # of a run that was cut off
rm -rf --one-file-system "$root"
mkdir -p "$folder/bin"
# bookworm's debootstrap has no script of this name, and forky is made as sid is
debootstrap --variant=minbase --include=python3.14,python3.15,ca-certificates \
  forky "$root" "${mirror:-http://deb.debian.org/debian}" /usr/share/debootstrap/scripts/sid >"$folder/log" 2>&1
for minor in 14 15; do
  cat >"$folder/bin/python3.$minor" <<END
#!/bin/sh
root='$root'
libraries="\$root/usr/lib/x86_64-linux-gnu:\$root/lib/x86_64-linux-gnu\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
exec "\$root/lib64/ld-linux-x86-64.so.2" --library-path "\$libraries" "\$root/usr/bin/python3.$minor" "\$@"
END
  chmod +x "$folder/bin/python3.$minor"
  "$folder/bin/python3.$minor" -c 'import json, socket'
done
