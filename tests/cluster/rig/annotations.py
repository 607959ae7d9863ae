"""Annotations by which a test lets objects fail, at creation (a pod template) or at any time later (`Rig.fault`).

| `rig/fault` on a pod | what a kubelet would show |
|---|---|
| `image-pull` | Pending, ImagePullBackOff; only before the pod runs |
| `init-crash` | Pending, the init containers in CrashLoopBackOff; only before the pod runs |
| `unready` | Running, its containers not ready |
| `exit` | Failed, its containers ended with `rig/exit-code` (1) |
| `oom` | Failed, OOMKilled, 137: a pod that is never restarted |
| `crash-loop` | Running, CrashLoopBackOff after OOMKilled: a pod that is restarted |
| `evicted` | Failed, Evicted for memory |
| `hang` | a Job's pod runs for ever |
| `recovered` | ready again |

Durations as in `1500ms` or `4s`: `rig/fault-after` delays a fault of a running pod, `rig/ready-after` readiness,
`rig/runs-for` is how long a Job's pod runs, `rig/ends-in` how long a deleted pod lingers.

A node has `rig/fault: not-ready`, a Gateway and an HTTPRoute `refused`, an HTTPRoute `unresolved`; for these two a
fault counts from the next change of their spec on.

Pods of headway's own programs (label `app.kubernetes.io/component`: `job` or `stage`) are left to `hands.py`, which
runs them for real, unless they have a `rig/fault`: then KWOK has them too.
"""

FAULT = "rig/fault"
FAULT_AFTER = "rig/fault-after"
EXIT_CODE = "rig/exit-code"
READY_AFTER = "rig/ready-after"
RUNS_FOR = "rig/runs-for"
ENDS_IN = "rig/ends-in"
COMPONENT = "app.kubernetes.io/component"
HANDED_COMPONENTS = ("job", "stage")

GATEWAY_CONTROLLER = "rig.headway/gateway"
"""Whose GatewayClasses the rig plays the controller for."""
