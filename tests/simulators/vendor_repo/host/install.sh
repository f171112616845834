#!/bin/sh
# Turns a bare Debian host into a simulated GPU host: install.sh URL-OF-THE-REPOSITORIES DEBIAN-RELEASE KERNEL
set -eu
url=$1 release=$2 kernel=$3
folder=/usr/local/lib/socle-sim
chmod 0755 "$folder/hardware.py"
for name in modprobe rmmod lsmod modinfo depmod mokutil update-initramfs; do
    ln -sf "$folder/hardware.py" "/usr/local/sbin/$name"
done
"$folder/hardware.py" install "$kernel" "$folder/shape.json"

# The distribution's kernels and DKMS, without their size.
curl -fsS --noproxy '*' --retry 5 --retry-connrefused -o /usr/share/keyrings/socle-sim.gpg "$url/kernels/key.gpg"
echo "deb [signed-by=/usr/share/keyrings/socle-sim.gpg] $url/kernels/$release ./" >/etc/apt/sources.list.d/socle-sim-kernels.list
cat >/etc/apt/preferences.d/socle-sim-kernels <<END
Package: linux-image-* linux-headers-* dkms
Pin: release l=simulated kernels
Pin-Priority: 1001
END
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq --no-install-recommends install linux-image-amd64 >/dev/null

# The refresh unit watches the modules of the machine's own kernel, which is another one here.
mkdir -p /etc/systemd/system/nvidia-cdi-refresh.path.d
printf '[Path]\nPathChanged=/lib/modules/%s/modules.dep\n' "$kernel" >/etc/systemd/system/nvidia-cdi-refresh.path.d/simulated-kernel.conf
ln -sf "$folder/socle-sim.service" /etc/systemd/system/socle-sim.service
systemctl daemon-reload
systemctl -q enable socle-sim.service
"$folder/hardware.py" boot
