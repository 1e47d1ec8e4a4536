nodes=$1
shift
sysctl -qw net.ipv6.conf.default.disable_ipv6=1
for node in $(seq "$nodes"); do
    ip link add "wire$node" mtu 9000 type bridge ageing_time 0 forward_delay 0 mcast_snooping 0
    for end in card port; do
        ip tuntap add "$end$node" mode tap vnet_hdr
        ip link set "$end$node" mtu 9000 master "wire$node" up
    done
    ip link set "wire$node" up
done
exec "$@"
