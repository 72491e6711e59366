# Gives a node its own /etc, /opt, /proc, /run, /sys, /var/lib and /var/log. Runs in the node's
# namespaces: $1 is the node's folder, $2 its folder in the cgroup v2 hierarchy.
dir=$1 unified=$2
mount -t proc node-proc /proc
mount -t overlay -o "lowerdir=/etc,upperdir=$dir/etc,workdir=$dir/etc-work" node-etc /etc
mount -t tmpfs -o mode=755 node-run /run
mkdir -p /run/lock /run/netns /run/containerd /run/cilium/cgroupv2 /run/sys
if [ -n "$unified" ]; then mount --bind "$unified" /run/cilium/cgroupv2; fi
# A sysfs shows the network devices of the namespace it was mounted in.
mount --rbind /sys/fs/cgroup /run/sys
mount -t sysfs node-sys /sys
mount --rbind /run/sys /sys/fs/cgroup
umount -l /run/sys
rmdir /run/sys
mount -t bpf node-bpf /sys/fs/bpf
mount -t overlay -o "lowerdir=/opt,upperdir=$dir/opt,workdir=$dir/opt-work" node-opt /opt
mount --bind "$dir/var-log" /var/log
mount --bind "$dir/var-lib" /var/lib
mkdir -p /opt/cni/bin /var/lib/kubelet /var/lib/cilium /var/log/pods /var/log/containers
# New mounts reach the pods that ask for them (HostToContainer).
mount --make-rshared /
