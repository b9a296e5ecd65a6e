#!/bin/bash
# The network of pods on a node that kind made: gives pods addresses, and finds the way to pods on other nodes.
# kind's own program for this is published as an image only.
set -o errexit -o nounset -o pipefail

until range=$(kubectl get node "$NODE_NAME" --output 'jsonpath={.spec.podCIDR}') && [ -n "$range" ]; do
  sleep 1
done
configuration=/etc/cni/net.d/10-pod-network.conflist
cat > "$configuration.unfinished" <<END
{
  "cniVersion": "0.4.0",
  "name": "pod-network",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {"type": "host-local", "subnet": "$range", "routes": [{"dst": "0.0.0.0/0"}]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
END
mv "$configuration.unfinished" "$configuration" # in one step: containerd watches the folder

all_nodes='{range .items[*]}{.metadata.name} {.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}'
while true; do
  # A node that has no range or address yet is met again in the next round, and so is a failure.
  kubectl get nodes --output "jsonpath=$all_nodes" | while read -r name pods address; do
    if [ "$name" != "$NODE_NAME" ] && [ -n "$address" ]; then ip route replace "$pods" via "$address"; fi
  done || true
  sleep 2
done
