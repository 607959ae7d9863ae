"""The gateway's files: its bootstrap, and empty routes until a model is released.

The content of routes and upstream clusters belongs to `headway.adapters.local.traffic`.
"""

import json
from pathlib import Path
from string import Template

from headway.adapters.local.layout import HOST, LocalLayout

NO_MODEL = "no model has been released through this gateway yet; set the alias of a model version in MLflow"


def ensure(layout: LocalLayout) -> None:
    """Write the bootstrap, and routes that answer 503 with a reason where there are none yet."""
    layout.envoy.mkdir(parents=True, exist_ok=True)
    template = Template((layout.checkout / "local" / "envoy" / "bootstrap.yaml").read_text())
    bootstrap = template.substitute(
        host=HOST,
        folder=layout.envoy,
        admin_port=layout.envoy_admin_port,
        public_port=layout.public_port,
        internal_port=layout.internal_port,
    )
    _replace(layout.envoy_bootstrap, bootstrap)
    if not layout.envoy_clusters.exists():
        _replace(layout.envoy_clusters, "resources: []\n")
    for name, path in (("public", layout.envoy_public_routes), ("internal", layout.envoy_internal_routes)):
        if not path.exists():
            _replace(path, json.dumps({"resources": [_empty_routes(name)]}, indent=1))


def _empty_routes(name: str) -> dict[str, object]:
    return {
        "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        "name": name,
        "virtual_hosts": [
            {
                "name": "none",
                "domains": ["*"],
                "routes": [
                    {
                        "match": {"prefix": "/"},
                        "direct_response": {
                            "status": 503,
                            "body": {"inline_string": json.dumps({"error": {"message": NO_MODEL}})},
                        },
                        "response_headers_to_add": [{"header": {"key": "content-type", "value": "application/json"}}],
                    }
                ],
            }
        ],
    }


def _replace(path: Path, text: str) -> None:
    """Write by rename, because Envoy reads the file at the moment it appears."""
    if path.exists() and path.read_text() == text:
        return
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)
