from __future__ import annotations

import pytest

from policies.errors import UnsupportedMedia
from policies.requests.media import check_media


@pytest.mark.parametrize(
    "content_type",
    [
        pytest.param(None, id="none is read as JSON"),
        pytest.param("", id="an empty one is none"),
        pytest.param("application/json", id="plain JSON"),
        pytest.param("Application/JSON; Charset=UTF-8", id="in any case, with the only charset JSON has"),
        pytest.param('application/json; charset="utf-8"', id="quoted charset"),
        pytest.param("application/json; charset=us-ascii", id="ASCII is UTF-8"),
        pytest.param("application/merge-patch+json", id="a structured suffix"),
        pytest.param("text/json; q=1", id="an old name, with a parameter that says nothing"),
    ],
)
def test_json_in_utf8_is_read(content_type: str | None) -> None:
    assert check_media(content_type) is None


@pytest.mark.parametrize(
    ("content_type", "code"),
    [
        pytest.param("text/plain", "unsupported_media_type", id="text"),
        pytest.param("application/x-www-form-urlencoded", "unsupported_media_type", id="what curl -d says by itself"),
        pytest.param("multipart/form-data; boundary=x", "unsupported_media_type", id="a form"),
        pytest.param("json", "unsupported_media_type", id="no type at all"),
        pytest.param("application/json; charset=utf-16", "unsupported_charset", id="UTF-16"),
        pytest.param("application/json; charset=utf-7", "unsupported_charset", id="a second reading of the same bytes"),
        pytest.param("application/json; charset=bogus-8", "unsupported_charset", id="a charset nobody knows"),
        pytest.param("application/json; a=b; charset = latin-1", "unsupported_charset", id="behind another parameter"),
    ],
)
def test_anything_else_is_refused_saying_what_would_be_right(content_type: str, code: str) -> None:
    with pytest.raises(UnsupportedMedia) as refused:
        check_media(content_type)
    assert refused.value.code == code
    assert refused.value.status_hint == 415
    assert "JSON" in refused.value.message or "json" in refused.value.message
