"""Tests against a Kubernetes control plane: the rig, or the cluster that KUBECONFIG names."""
