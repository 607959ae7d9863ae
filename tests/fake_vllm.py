"""The shipped mock server as tests start it, and Envoy's statistics beside it."""

from aiohttp import web

from headway.pods.mock_vllm import MockVllm, head, right_answer

__all__ = ["FakeVllm", "head", "right_answer"]


class FakeVllm(MockVllm):
    """The mock server, which also answers as Envoy's admin does for the one cluster `stable`."""

    total: float = 0
    active: float = 0

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_get("/stats", self._stats)
        return app

    async def _stats(self, request: web.Request) -> web.Response:
        self.seen["/stats"] += 1
        rows = [
            {"name": "cluster.stable.upstream_rq_total", "value": self.total},
            {"name": "cluster.stable.upstream_rq_active", "value": self.active},
        ]
        return web.json_response({"stats": rows})
