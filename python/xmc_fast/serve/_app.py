"""The ASGI application: routes, and what each of them answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import anyio
from fastapi import FastAPI, Form, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from swagger_ui_bundle import swagger_ui_path

from xmc_fast import __version__
from xmc_fast.serve import _schemas as schemas
from xmc_fast.serve._batching import Overloaded
from xmc_fast.serve._direct import add_direct
from xmc_fast.serve._guards import Guards, problem
from xmc_fast.serve._metrics import Metrics
from xmc_fast.serve._models import Models, ServedModel, Text
from xmc_fast.serve._settings import LOOPBACK, Settings
from xmc_fast.serve._tables import tag_table

PAGE = Path(__file__).parent / "page"
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Problem} for status in (400, 401, 404, 408, 413, 422, 503, 504)
}


def create_app(settings: Settings) -> FastAPI:
    """The application of a server; its models are opened here.

    Examples
    --------
    >>> import tempfile
    >>> from xmc_fast import TextClassifier
    >>> folder = tempfile.mkdtemp() + "/drinks"
    >>> tags = ["drink", "drink", "metal", "metal"] * 10
    >>> TextClassifier().fit(["green tea", "black tea", "iron ore", "iron bar"] * 10, tags).save(folder)
    >>> app = create_app(Settings({"drinks": folder}))
    >>> app.title
    'xmc_fast'
    """
    metrics = Metrics()
    models = Models(settings, metrics.batch)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watcher = asyncio.create_task(models.watch())
        yield
        watcher.cancel()
        models.close()

    app = FastAPI(
        title="xmc_fast",
        version=__version__,
        summary="Label suggestions for texts",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own page asks another host for its scripts
        redoc_url=None,
        responses=_ERRORS,
    )
    app.openapi_version = "3.0.3"  # the newest that the bundled Swagger UI shows
    _add_errors(app)
    _add_api(app, settings, models)
    _add_annif(app, settings, models)
    _add_operations(app, models, metrics)
    _add_pages(app)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
        )
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, *settings.hosts])
    app.add_middleware(Guards, settings=settings, metrics=metrics)
    return app


def app_from_environment() -> FastAPI:
    """The application of one worker of `run`. See `create_app`."""
    return create_app(Settings.from_environment())


def _add_api(app: FastAPI, settings: Settings, models: Models) -> None:
    @app.get("/v1/models", tags=["models"])
    async def list_models() -> list[dict[str, Any]]:
        """The models and their sizes."""
        hidden = ("validation", "label_frequencies", "fit_report")
        found = [model.facts() for model in models.by_name.values()]
        return [{key: value for key, value in facts.items() if key not in hidden} for facts in found]

    @app.get("/v1/models/{name}", tags=["models"])
    async def describe_model(name: str) -> dict[str, Any]:
        """Sizes, training, measures on the validation rows, and label frequencies of a model."""
        return _find(models, name).facts()

    @app.post("/v1/models/{name}/suggest", tags=["models"], response_model=schemas.SuggestResponse)
    async def suggest(name: str, request: schemas.SuggestRequest) -> Response:
        """The best labels of one text or of each text of a batch."""
        model, texts = _find(models, name), request.batch
        if len(texts) > settings.max_batch:
            raise HTTPException(413, f"at most {settings.max_batch:,} texts a request, got {len(texts):,}")
        for text in texts:
            _check_text(model, text)
        found = await _suggest(model, texts, _check_k(settings, request.k), settings.timeout)
        results = []
        with _in_time(settings.timeout), _client_mistakes():
            for text, (classifier, row) in zip(texts, found, strict=True):
                kept = [
                    {"label": label, "probability": value}
                    for label, value in row
                    if request.threshold is None or value >= request.threshold
                ]
                for suggestion in kept if request.explain else ():
                    suggestion["explanation"] = await model.explain(
                        classifier, text, suggestion["label"], request.explain
                    )
                results.append({"suggestions": kept})
        return JSONResponse({"model": name, "results": results})

    add_direct(app, "/v1/models/{name}/suggest", schemas.SuggestRequest, suggest)

    @app.post("/v1/models/{name}/explain", tags=["models"])
    async def explain(name: str, request: schemas.ExplainRequest) -> dict[str, Any]:
        """Which terms of a text speak for and against a label.

        `spans` are places in the text, counted in Unicode code points.
        """
        model = _find(models, name)
        _check_text(model, request.text)
        with _in_time(settings.timeout), _client_mistakes():
            return await model.explain(model.classifier, request.text, request.label, request.top)

    @app.post("/v1/models/{name}/tag", tags=["models"], response_class=Response)
    async def tag(
        name: str,
        request: Request,
        k: Annotated[int, Query(ge=1)] = 5,
        threshold: Annotated[float | None, Query(allow_inf_nan=False)] = None,
        text: Annotated[str | None, Query(description="text columns, with commas between them")] = None,
    ) -> Response:
        """A CSV table (the body, UTF-8) with two columns more: the suggestions and their probabilities.

        The header `X-Rows` tells how many rows will come.
        """
        model = _find(models, name)
        with _client_mistakes():
            body, most = await request.body(), _check_k(settings, k)
            return await tag_table(model, body, text, most, threshold, settings.timeout)

    @app.get("/v1/models/{name}/labels", tags=["labels"], response_model=list[schemas.Label])
    async def search_labels(
        name: str,
        q: Annotated[str, Query(max_length=200, description="words or parts of words")] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    ) -> Response:
        """Labels whose name holds the words of a query, those that begin with it first."""
        return JSONResponse(_find(models, name).search(q, limit))

    @app.get("/v1/models/{name}/label", tags=["labels"])
    async def describe_label(
        name: str,
        label: Annotated[str, Query(description="the whole name")],
        top: Annotated[int, Query(ge=1, le=100)] = 10,
    ) -> dict[str, Any]:
        """The strongest terms for and against a label, its frequency, and the labels most like it."""
        model = _find(models, name)
        with _in_time(settings.timeout), _client_mistakes():
            return await model.describe(label, top)


def _add_annif(app: FastAPI, settings: Settings, models: Models) -> None:
    """What Annif's ``http`` backend calls: ``endpoint=http://127.0.0.1:8000/v1/projects/NAME/suggest``."""

    @app.get("/v1/projects/{name}", tags=["Annif"])
    async def describe_project(name: str) -> dict[str, Any]:
        """A model as a project of Annif."""
        facts = _find(models, name).facts()
        return {"project_id": name, "name": name, "is_trained": True, "modification_time": facts["modified"]}

    @app.post("/v1/projects/{name}/suggest", tags=["Annif"])
    async def suggest_for_project(
        name: str,
        text: Annotated[str, Form()],
        limit: Annotated[int, Form(ge=1)] = 10,
        threshold: Annotated[float, Form(allow_inf_nan=False)] = 0.0,
    ) -> Response:
        """Subjects of a text; labels of the model are their URIs."""
        model = _find(models, name)
        _check_text(model, text)
        found = await _suggest(model, [text], min(limit, settings.max_k), settings.timeout)
        results = [
            {"uri": label, "label": label, "notation": None, "score": min(max(score, 0.0), 1.0)}
            for label, score in found[0][1]
            if score >= threshold
        ]
        return JSONResponse({"results": results})


def _add_operations(app: FastAPI, models: Models, metrics: Metrics) -> None:
    @app.get("/health", tags=["operations"])
    async def health() -> dict[str, str]:
        """Answers while the process works."""
        return {"status": "ok"}

    @app.get("/ready", tags=["operations"])
    async def ready() -> dict[str, Any]:
        """Answers when the models are open; `problems` names those whose folder is gone or damaged."""
        found = {name: model.problem for name, model in models.by_name.items() if model.problem}
        return {"status": "ready", "problems": found}

    @app.get("/metrics", tags=["operations"], response_class=Response)
    async def show_metrics() -> Response:
        """Counts and times for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_pages(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(PAGE / "docs.html")

    app.mount("/page", StaticFiles(directory=PAGE))
    app.mount("/swagger", StaticFiles(directory=swagger_ui_path))


def _add_errors(app: FastAPI) -> None:
    """Errors are ``{"detail": "one sentence"}``; they never repeat the text of a request."""

    @app.exception_handler(StarletteHTTPException)
    async def http_error(_: Request, error: StarletteHTTPException) -> Response:
        return problem(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def wrong_request(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return problem(422, f"the body is not JSON: {first['ctx']['error']}")
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return problem(422, f"{place}: {first['msg']}" if place else str(first["msg"]))

    @app.exception_handler(Exception)
    async def our_mistake(_: Request, error: Exception) -> Response:
        return problem(500, f"the server failed: {type(error).__name__}")


def _find(models: Models, name: str) -> ServedModel:
    if name not in models.by_name:
        raise HTTPException(404, f"no model {name!r}, there are {', '.join(map(repr, models.by_name))}")
    return models.by_name[name]


def _check_k(settings: Settings, k: int) -> int:
    if k > settings.max_k:
        raise HTTPException(422, f"k must be at most {settings.max_k}, got {k}")
    return k


def _check_text(model: ServedModel, text: Text) -> None:
    columns = model.classifier.text_columns_
    for name in text if isinstance(text, dict) else ():
        if name not in columns:
            raise HTTPException(422, f"the model has no text column {name!r}, it has {columns}")
    try:
        (text if isinstance(text, str) else "".join(text.values())).encode()
    except UnicodeEncodeError:
        raise HTTPException(422, "a text is not valid Unicode: it has half of a surrogate pair") from None


async def _suggest(model: ServedModel, texts: list[Text], k: int, timeout: float) -> list[Any]:
    try:
        return await model.suggest(texts, k, timeout)
    except Overloaded as error:
        raise HTTPException(503, f"too many requests: {error}", {"Retry-After": "1"}) from None
    except asyncio.TimeoutError:
        raise _too_late(timeout) from None


def _too_late(seconds: float) -> HTTPException:
    return HTTPException(504, f"no answer within {seconds:g} s")


@contextlib.contextmanager
def _in_time(seconds: float) -> Any:
    """Status 504 after so many seconds: a batch may ask for very many explanations."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise _too_late(seconds) from None


@contextlib.contextmanager
def _client_mistakes() -> Any:
    """A ValueError is the client's mistake: status 422."""
    try:
        yield
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
