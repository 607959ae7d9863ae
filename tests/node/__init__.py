"""Tests on a real node: kubelet, containerd and real pods, in a private set of namespaces of this machine."""
