from __future__ import annotations

import pytest

from policies.errors import MethodNotAllowed, UnknownRoute
from policies.requests.asked import Dialect, Endpoint
from proxy.handler import Generation
from proxy.routes import find_generation, find_route


@pytest.mark.parametrize(
    ("method", "path", "name", "model"),
    [
        ("POST", "/v1/completions", "/v1/completions", None),
        ("POST", "/v1/chat/completions", "/v1/chat/completions", None),
        ("POST", "/v1/embeddings", "/v1/embeddings", None),
        ("POST", "/v1/responses", "/v1/responses", None),
        ("POST", "/openai/v1/completions", "/openai/v1/completions", None),
        ("POST", "/openai/v1/responses", "/openai/v1/responses", None),
        ("POST", "/openai/responses", "/openai/responses", None),
        ("POST", "/v1/engines/davinci/completions", "/v1/engines/{model}/completions", "davinci"),
        ("POST", "/v1/engines/org%2Fmodel/completions", "/v1/engines/{model}/completions", "org/model"),
        ("POST", "/v1/engines/org/model/completions", "/v1/engines/{model}/completions", "org/model"),
        ("GET", "/v1/engines", "/v1/engines", None),
        ("GET", "/v1/engines/davinci", "/v1/engines/{model}", "davinci"),
        ("GET", "/v1/models", "/v1/models", None),
        ("GET", "/v1/models/org%2fmodel", "/v1/models/{model}", "org/model"),
        ("POST", "/openai/deployments/d/completions", "/openai/deployments/{model}/completions", "d"),
        ("POST", "/openai/deployments/a/b/chat/completions", "/openai/deployments/{model}/chat/completions", "a/b"),
        ("POST", "/openai/deployments/d/embeddings", "/openai/deployments/{model}/embeddings", "d"),
        ("GET", "/openai/models", "/openai/models", None),
        ("GET", "/openai/models/m", "/openai/models/{model}", "m"),
        ("GET", "/v1/tidegate/me", "/v1/tidegate/me", None),
        ("GET", "/healthz", "/healthz", None),
    ],
)
def test_a_path_of_the_api_has_its_route(method: str, path: str, name: str, model: str | None) -> None:
    route, found = find_route(method, path)
    assert (route.name, found) == (name, model)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/", id="the root"),
        pytest.param("", id="nothing"),
        pytest.param("*", id="the server itself"),
        pytest.param("/v1/completions/", id="a trailing slash"),
        pytest.param("//v1/completions", id="a doubled slash in front"),
        pytest.param("/v1//completions", id="a doubled slash within"),
        pytest.param("/V1/Completions", id="another case"),
        pytest.param("/v1/%63ompletions", id="a letter that is escaped"),
        pytest.param("/v1/./completions", id="a dot segment"),
        pytest.param("/x/../v1/completions", id="a way up"),
        pytest.param("/v1/engines//completions", id="no model"),
        pytest.param("/v1/engines/../completions", id="a way up for a model"),
        pytest.param("/v1/engines/%2e%2e/completions", id="a way up for a model, escaped"),
        pytest.param("/v1/engines/a%2F..%2Fb/completions", id="a way up within a model"),
        pytest.param("/v1/engines/a//b/completions", id="a doubled slash within a model"),
        pytest.param("/v1/engines/%ff/completions", id="a model that is no text"),
        pytest.param("/v1/engines/", id="a model list with a slash"),
        pytest.param("/openai/deployments/d", id="a deployment alone"),
        pytest.param("/openai/deployments/d/responses", id="responses below a deployment"),
        pytest.param("/v1/responses/", id="responses and a slash"),
        pytest.param("/v1/responses/resp_1", id="a response that was kept"),
        pytest.param("/v1/tidegate/me/", id="oneself and a slash"),
        pytest.param("/v1/tidegate/limits", id="the control plane's limits"),
        pytest.param("/metrics", id="the control plane's metrics"),
        pytest.param("/readyz", id="the control plane's readiness"),
        pytest.param("/v1/files", id="a part of the API that is not served"),
    ],
)
def test_every_other_path_is_unknown(path: str) -> None:
    with pytest.raises(UnknownRoute):
        find_route("POST", path)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/completions", ("POST",)),
        ("HEAD", "/v1/completions", ("POST",)),
        ("OPTIONS", "/v1/chat/completions", ("POST",)),
        ("post", "/v1/completions", ("POST",)),
        ("DELETE", "/v1/models", ("GET",)),
        ("GET", "/v1/responses", ("POST",)),
        ("POST", "/v1/tidegate/me", ("GET",)),
        ("POST", "/v1/models/m", ("GET",)),
        ("PUT", "/openai/deployments/d/completions", ("POST",)),
    ],
)
def test_another_method_is_told_which_are_taken(method: str, path: str, allowed: tuple[str, ...]) -> None:
    with pytest.raises(MethodNotAllowed) as refused:
        find_route(method, path)
    assert refused.value.allowed == allowed


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        ("/v1/responses", "", Generation(Endpoint.RESPONSES, Dialect.OPENAI)),
        (
            "/openai/v1/responses",
            "api-version=preview",
            Generation(Endpoint.RESPONSES, Dialect.OPENAI, None, "preview"),
        ),
        ("/openai/responses", "api-version=1", Generation(Endpoint.RESPONSES, Dialect.AZURE, None, "1")),
        ("/openai/deployments/d/embeddings", "", Generation(Endpoint.EMBEDDINGS, Dialect.AZURE, "d")),
        ("/v1/engines/a%2Fb/completions", "", Generation(Endpoint.COMPLETIONS, Dialect.ENGINES, "a/b")),
        ("/v1/chat/completions", "", Generation(Endpoint.CHAT, Dialect.OPENAI)),
    ],
)
def test_a_generating_route_says_its_endpoint_and_dialect(path: str, query: str, expected: Generation) -> None:
    assert find_generation(path, query) == expected


def test_nothing_generates_where_there_is_no_such_route() -> None:
    with pytest.raises(UnknownRoute):
        find_generation("/v1/files", "")
    with pytest.raises(MethodNotAllowed):
        find_generation("/v1/models", "")
