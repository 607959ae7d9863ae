"""The rig: a real Kubernetes control plane as plain processes on 127.0.0.1, for the tests of this folder."""
