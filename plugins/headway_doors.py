"""Mounts headway's doors in Airflow's API server, below `/headway`."""

from typing import Any

from airflow.plugins_manager import AirflowPlugin


class Doors:
    """The application, made at the first request: every program of Airflow loads plugins, and one serves them."""

    app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if self.app is None:
            from operators import door
            from operators.hook import HeadwayHook

            self.app = door.make(lambda: HeadwayHook().backend)
        await self.app(scope, receive, send)


class HeadwayDoors(AirflowPlugin):
    """What MLflow sends to headway."""

    name = "headway_doors"
    fastapi_apps = [{"app": Doors(), "url_prefix": "/headway", "name": "headway"}]
