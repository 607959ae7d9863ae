"""Status templates of KWOK's stages: YAML with Go's template language, as a kubelet or a gateway would write it."""

from .annotations import EXIT_CODE, GATEWAY_CONTROLLER

NOW = "{{ Now | Quote }}"
OOM_CODE = "137"

# KWOK gives a new address at every call, and addresses of a pod are merged, not replaced: set them once.
ADDRESS = """\
{{ if not .status.podIP }}
{{ $ips := PodIPsWith .spec.nodeName (or .spec.hostNetwork false) (or .metadata.uid "") (or .metadata.name "")
                      (or .metadata.namespace "") }}
hostIP: {{ index (NodeIPsWith .spec.nodeName) 0 | Quote }}
podIP: {{ index $ips 0 | Quote }}
podIPs:
{{ range $ips }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}"""
GATES = """\
{{ range .spec.readinessGates }}
- {type: {{ .conditionType | Quote }}, status: "True", lastTransitionTime: {{ Now | Quote }}}
{{ end }}"""
CODE = f'{{{{ or (index $.metadata.annotations "{EXIT_CODE}") "1" }}}}'


def conditions(*, ready: bool, reason: str = "", initialized: bool = True) -> str:
    """Return the conditions of a pod."""
    told = {
        "Initialized": (initialized, "" if initialized else "ContainersNotInitialized"),
        "Ready": (ready, reason),
        "ContainersReady": (ready, reason),
    }
    lines = [
        f'- {{type: {name}, status: "{holds}", reason: "{why}", lastTransitionTime: {NOW}}}'
        for name, (holds, why) in told.items()
    ]
    return "\n".join(["conditions:", *lines, GATES])


def running() -> str:
    """Return the state of a container that runs."""
    return f"{{running: {{startedAt: {NOW}}}}}"


def ended(code: str, reason: str) -> str:
    """Return the state of a container that has ended."""
    return f"{{terminated: {{exitCode: {code}, reason: {reason}, startedAt: {NOW}, finishedAt: {NOW}}}}}"


def waits(reason: str, message: str = "") -> str:
    """Return the state of a container that waits."""
    return f'{{waiting: {{reason: {reason}, message: "{message}"}}}}'


def containers(state: str, *, ready: bool = False, last: str = "", restarts: int = 0, kind: str = "container") -> str:
    """Return the statuses of a pod's containers, or of its `initContainer`s, all in one state."""
    return "\n".join(
        [
            f"{{{{ if .spec.{kind}s }}}}",
            f"{kind}Statuses:",
            f"{{{{ range .spec.{kind}s }}}}",
            "- name: {{ .name | Quote }}",
            "  image: {{ .image | Quote }}",
            "  imageID: {{ .image | Quote }}",
            f"  ready: {str(ready).lower()}",
            f"  started: {str('running' in state).lower()}",
            f"  restartCount: {restarts}",
            f"  state: {state}",
            *([f"  lastState: {last}"] if last else []),
            "{{ end }}",
            "{{ end }}",
        ]
    )


def up(*, ready: bool) -> str:
    """Return the status of a pod that runs."""
    return "\n".join(
        [
            conditions(ready=ready, reason="" if ready else "ContainersNotReady"),
            containers(ended("0", "Completed"), ready=True, kind="initContainer"),
            containers(running(), ready=ready),
            ADDRESS,
            f"phase: Running\nstartTime: {NOW}",
        ]
    )


def over(phase: str, code: str, reason: str, more: str = "") -> str:
    """Return the status of a pod whose containers have ended."""
    why = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    return "\n".join([conditions(ready=False, reason=why), containers(ended(code, reason)), f"phase: {phase}", more])


def pulling(reason: str, message: str) -> str:
    """Return the status of a pod whose image does not come."""
    return "\n".join(
        [conditions(ready=False, reason="ContainersNotReady"), containers(waits(reason, message)), ADDRESS]
    )


def init_crash(message: str) -> str:
    """Return the status of a pod whose first program fails."""
    return "\n".join(
        [
            conditions(ready=False, reason="ContainersNotReady", initialized=False),
            containers(waits("CrashLoopBackOff", message), last=ended(CODE, "Error"), restarts=1, kind="initContainer"),
            containers(waits("PodInitializing")),
            ADDRESS,
        ]
    )


def crash_loop(message: str) -> str:
    """Return the status of a pod whose containers are killed for memory again and again."""
    return "\n".join(
        [
            conditions(ready=False, reason="ContainersNotReady"),
            containers(waits("CrashLoopBackOff", message), last=ended(OOM_CODE, "OOMKilled"), restarts=1),
        ]
    )


def node_not_ready(message: str) -> str:
    """Return the status of a node whose kubelet says so."""
    times = f"lastHeartbeatTime: {NOW}, lastTransitionTime: {NOW}"
    return f'conditions:\n- {{type: Ready, status: "False", reason: KubeletNotReady, message: "{message}", {times}}}'


def verdicts(indent: str = "", **told: tuple[bool, str]) -> str:
    """Return the conditions of Gateway API: name to whether it holds, and the reason."""
    seen = f"observedGeneration: {{{{ $.metadata.generation }}}}, lastTransitionTime: {NOW}"
    lines = [
        f'{indent}- {{type: {name}, status: "{holds}", reason: {reason}, message: "", {seen}}}'
        for name, (holds, reason) in told.items()
    ]
    return "\n".join([f"{indent}conditions:", *lines])


def route(*, accepted: bool, resolved: bool) -> str:
    """Return the status of an HTTPRoute, from each of its gateways."""
    return "\n".join(
        [
            "parents:",
            "{{ range .spec.parentRefs }}",
            f"- controllerName: {GATEWAY_CONTROLLER}",
            "  parentRef:",
            "    group: gateway.networking.k8s.io",
            "    kind: Gateway",
            "    name: {{ .name | Quote }}",
            "    namespace: {{ or .namespace $.metadata.namespace | Quote }}",
            verdicts(
                "  ",
                Accepted=(accepted, "Accepted" if accepted else "NotAllowedByListeners"),
                ResolvedRefs=(resolved, "ResolvedRefs" if resolved else "BackendNotFound"),
            ),
            "{{ end }}",
        ]
    )
