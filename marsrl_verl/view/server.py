"""The page's HTTP side, for the browser of this machine alone."""

# Without postponed annotations: FastAPI reads those of functions within a function.

import hashlib
import secrets
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from marsrl_verl.view.run import Filter, ViewedRun, plain

STATIC = Path(__file__).parent / "static"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page loads its own files alone: text of models that looks like a page's is text."""
_MOST = 2000
"""Rows of one answer."""


def build_application(runs: list[ViewedRun], token: str) -> FastAPI:
    """The application.

    Args:
        runs: shown, in this order.
        token: has to be in the address that is opened first; then a cookie has it.
    """
    # Cookies are those of a machine, not of a port: each server's has a name of its own.
    cookie = f"marsrl_view_{hashlib.sha256(token.encode()).hexdigest()[:8]}"
    app = FastAPI(title="marsrl-verl", docs_url=None, redoc_url=None, openapi_url=None)
    # Another site's name that is made to point here has no answer.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"])
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    def check(request: Request) -> None:
        sent = request.query_params.get("token") or request.cookies.get(cookie, "")
        if not secrets.compare_digest(sent.encode(), token.encode()):
            raise HTTPException(403, "The address has no valid token: open the one that the command printed.")

    def run_of(number: int) -> ViewedRun:
        if not 0 <= number < len(runs):
            raise HTTPException(404, f"There is no run {number}.")
        return runs[number]

    def answer(content: object) -> Response:
        return Response(plain(content), media_type="application/json")

    @app.middleware("http")
    async def guarded(request: Request, go_on):  # type: ignore[no-untyped-def]
        response = await go_on(request)
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-cache"
        return response

    checked = [Depends(check)]
    One = Annotated[ViewedRun, Depends(run_of)]

    @app.get("/", dependencies=checked)
    def page() -> Response:
        response = FileResponse(STATIC / "index.html")
        response.set_cookie(cookie, token, httponly=True, samesite="strict")
        return response

    @app.get("/api/runs", dependencies=checked)
    def names() -> Response:
        return answer([{"name": one.name, "path": str(one.path)} for one in runs])

    @app.get("/api/runs/{number}/state", dependencies=checked)
    def state(run: One) -> Response:
        return answer(run.state())

    @app.get("/api/runs/{number}/overview", dependencies=checked)
    def overview(run: One) -> Response:
        return answer(run.overview())

    @app.get("/api/runs/{number}/metrics", dependencies=checked)
    def metrics(run: One) -> Response:
        return answer(run.metrics())

    @app.get("/api/runs/{number}/choices", dependencies=checked)
    def choices(run: One) -> Response:
        return answer(run.choices())

    @app.get("/api/runs/{number}/problems", dependencies=checked)
    def problems(
        run: One,
        wanted: Annotated[Filter, Depends()],
        offset: int = 0,
        limit: Annotated[int, Query(le=_MOST)] = 200,
    ) -> Response:
        return answer(run.problems(wanted, offset, limit))

    @app.get("/api/runs/{number}/lines", dependencies=checked)
    def lines(
        run: One,
        wanted: Annotated[Filter, Depends()],
        offset: int = 0,
        limit: Annotated[int, Query(le=_MOST)] = 200,
        order: Annotated[str, Query(pattern="^-?[a-z_]*$")] = "",
    ) -> Response:
        return answer(run.lines(wanted, offset, limit, order))

    @app.get("/api/runs/{number}/line", dependencies=checked)
    def line(run: One, file: str, row: int) -> Response:
        try:
            return answer(run.line(file, row))
        except KeyError as error:
            raise HTTPException(404, str(error)) from error

    return app
