# What the pods of the control plane run, and those of every node: one layer of programs, three ways to start it.
ARG BASE
FROM $BASE AS programs
COPY kube etcd coredns pause pod-network.sh /usr/local/bin/
RUN for name in kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl; do \
      ln -s kube /usr/local/bin/$name; \
    done

FROM programs AS coredns
ENTRYPOINT ["/usr/local/bin/coredns"]

FROM programs AS pause
ENTRYPOINT ["/usr/local/bin/pause"]
