#!/bin/busybox sh
# The first process of a guest: sets up the machine, runs the suites, prints how they ended, and
# powers off.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /run/netns /tmp /sys/fs/bpf
mount -t tmpfs run /run
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
export PATH=/bin:/sbin:/usr/sbin HOME=/root CI=true TMPDIR=/tmp
ulimit -n 65536
# QEMU's monitor, if there is one: without this, the terminal would send back all that it says.
stty -F /dev/ttyS1 raw -echo 2>/dev/null
# Modules that the kernel does not load by itself.
for module in bridge veth 8021q bonding sctp nf_tables nf_conntrack \
    virtio_pci virtio_net igb vmxnet3 e1000e e1000 8139cp xhci_pci cdc_ether; do
    modprobe -q "$module"
done

failed=0
suite() {
    name=$1
    shift
    echo "==> $name on Linux $(uname -r)"
    "/vipmux/$name" "$@" </dev/null 2>&1 || failed=1
}

echo "@@BEGIN"
. /suites
echo "@@END $failed"
poweroff -f
