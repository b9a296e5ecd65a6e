# A node for kind: Debian's containerd, the files of kind's base image, Kubernetes, and the images of its pods.
ARG BASE
FROM $BASE
COPY files/etc/ /etc/
COPY files/kind/ /kind/
COPY files/usr/local/bin/entrypoint /usr/local/bin/
COPY kube kubeadm /usr/bin/
COPY images.tar version /kind/
COPY pod-network.yaml /kind/manifests/default-cni.yaml
COPY storage.yaml /kind/manifests/default-storage.yaml
COPY load-images.service /etc/systemd/system/

# The files come from a Go module, whose folder is read-only and knows no executables.
RUN chmod -R u+w,go+rX /etc/containerd /etc/default /etc/sysctl.d /etc/systemd /kind \
 && chmod 755 /kind/bin/* /usr/local/bin/entrypoint \
 && ln -s kube /usr/bin/kubelet \
 && ln -s kube /usr/bin/kubectl \
 && ln -s /usr/bin/containerd /usr/local/bin/ \
 && mkdir -p /opt/cni /etc/kubernetes/manifests \
 && ln -s /usr/lib/cni /opt/cni/bin

# Every container of a pod starts from this, with the hook that hides the machine's identity from it.
RUN ctr oci spec \
    | jq '.hooks.createContainer = [{path: "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' \
    > /etc/containerd/cri-base.json

# A container without CAP_SYS_RESOURCE may not protect itself from the lack of memory more than it was before.
RUN sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' /etc/containerd/config.toml \
 && mkdir /etc/systemd/system/containerd.service.d \
 && printf '[Service]\nOOMScoreAdjust=0\n' > /etc/systemd/system/containerd.service.d/memory.conf

# Nothing of Debian's but what a container can do: no devices, no consoles, no file systems.
RUN cd /lib/systemd/system \
 && rm -f sysinit.target.wants/systemd-tmpfiles-setup.service local-fs.target.wants/* basic.target.wants/* \
      multi-user.target.wants/* sockets.target.wants/*udev* sockets.target.wants/*initctl* \
      /etc/systemd/system/*.wants/* \
 && echo ReadKMsg=no >> /etc/systemd/journald.conf \
 && ln -sf /lib/systemd/systemd /sbin/init \
 && systemctl enable containerd.service kubelet.service load-images.service undo-mount-hacks.service \
 && systemctl mask systemd-binfmt.service

ENV container=docker
# What ends systemd; to a SIGTERM it only starts anew.
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]
