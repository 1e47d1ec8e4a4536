#!/bin/sh
# The first process of a node: makes what a machine has of its own, then starts containerd and the kubelet.
# Arguments: the node's name, its folder, and the kubelet's program and options.
set -eu

# The cgroups at the start of a namespace are its roots. `unshare`, which started this process and waits for it,
# stays outside: it could not be moved from within.
if [ -z "${in_cgroups:-}" ]; then
    while read -r file; do echo 0 >"$file"; done <"$2/cgroups"
    export in_cgroups=yes
    exec unshare --cgroup sh "$0" "$@"
fi
unset in_cgroups
name=$1 folder=$2
shift 2

hostname "$name"
mount --make-rshared /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t bpf bpf /sys/fs/bpf

# The node's cgroups are what it finds at the root of its namespace.
if [ -e "$folder/controllers" ]; then
    mount -t tmpfs tmpfs /sys/fs/cgroup
    while read -r controller; do
        mkdir "/sys/fs/cgroup/$controller"
        case $controller in
        systemd) mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd ;;
        *) mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller" ;;
        esac
    done <"$folder/controllers"
else
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    # A group with processes cannot share controllers out (cgroups(7), "no internal processes").
    mkdir /sys/fs/cgroup/init
    echo 0 >/sys/fs/cgroup/init/cgroup.procs
    for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
        echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
    done
fi

mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/lock
for place in var/lib var/log; do
    mount --bind "$folder/$place" "/$place"
    mount --make-shared "/$place"
done
mkdir -p /var/lib/kubelet /var/lib/containerd /var/lib/cni
# What the node writes into /etc stays in its folder.
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$folder/etc,workdir=$folder/work" /etc

# The kubelet writes sysctls of the machine. It finds what it wants in files of the node.
mkdir /run/sysctl
pretend() {
    echo "$2" >"/run/sysctl/$(basename "$1")"
    mount --bind "/run/sysctl/$(basename "$1")" "/proc/sys/$1"
}
pretend vm/overcommit_memory 1
pretend vm/panic_on_oom 0
pretend kernel/panic 10
pretend kernel/panic_on_oops 1
pretend kernel/keys/root_maxkeys 1000000
pretend kernel/keys/root_maxbytes 25000000

run() {
    label=$1
    shift
    while :; do
        "$@" </dev/null >>"$folder/$label.log" 2>&1 || true
        echo "=== it ended" >>"$folder/$label.log"
        sleep 2
    done &
}
run containerd containerd --config "$folder/containerd.toml"
run kubelet "$@"
if [ -e "$folder/cni.sh" ]; then run cni sh "$folder/cni.sh"; fi
echo ready

# Waits for processes that others leave, for ever.
trap '' TERM INT HUP
while :; do
    sleep 3600 &
    wait $! || true
done
