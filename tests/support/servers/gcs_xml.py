"""Google Cloud Storage's XML API, as far as obstore uses it, on the JSON API of fake-gcs-server.

The server has neither uploads nor pages nor conditions in its XML API. It keeps the objects and checks conditions; this module
only translates. Requests of the JSON API, which PyIceberg and Iceberg's Java library use, are forwarded as they are.

Run it as a process: PyArrow holds Python's lock while it waits for an answer.
"""

import http.client
import json
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

from tests.support.servers.faulty_proxy import Forward, before, forward_to

Answer = tuple[int, list[tuple[str, str]], bytes]
_JSON_API = ("/storage/v1/", "/upload/", "/download/", "/batch/")


def xml_of(json_api: str) -> Forward:
    server, as_it_is = urlsplit(json_api).netloc, forward_to(json_api)

    def ask(method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        connection = http.client.HTTPConnection(server, timeout=30)
        try:
            connection.request(method, path, body, {"Content-Type": "application/octet-stream", **headers})
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def forward(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        if path.startswith(_JSON_API):
            return as_it_is(method, path, headers, body)
        route, _, query = path.partition("?")
        bucket, _, key = unquote(route.lstrip("/")).partition("/")
        objects = f"/storage/v1/b/{bucket}/o"
        uri = f"{objects}/{quote(key, safe='')}"
        if not key:
            return _page(ask, objects, {k: v[0] for k, v in parse_qs(query).items()})
        if method == "DELETE":
            return _plain(ask("DELETE", uri))
        absent = {"ifGenerationMatch": "0"} if headers.get("x-goog-if-generation-match") == "0" else {}
        if method == "PUT" and (source := headers.get("x-goog-copy-source")):
            from_bucket, _, from_key = unquote(source.lstrip("/")).partition("/")
            copied = (
                f"/storage/v1/b/{from_bucket}/o/{quote(from_key, safe='')}/rewriteTo/b/{bucket}/o/{quote(key, safe='')}"
            )
            return _plain(ask("POST", f"{copied}?{urlencode(absent)}"))
        if method == "PUT":
            asked = {"uploadType": "media", "name": key, **absent}
            return _plain(ask("POST", f"/upload{objects}?{urlencode(asked)}", body))
        status, _, content = found = ask("GET", uri)
        if status != 200:
            return _plain(found)
        meta = json.loads(content)
        wanted = headers.get("If-Match")
        if wanted is not None and wanted.strip('"') != _etag(meta):
            return 412, [], b""
        if method == "HEAD":
            return 200, [*_headers(meta), ("Content-Length", meta["size"])], b""
        given = {"Range": headers["Range"]} if "Range" in headers else {}
        status, answered, data = ask("GET", f"{uri}?alt=media", b"", **given)
        return status, [*_headers(meta), *((k, v) for k, v in answered if k.lower() == "content-range")], data

    return forward


def _page(ask: Any, objects: str, query: Mapping[str, str]) -> Answer:
    after = query.get("start-after") or query.get("marker") or ""
    asked = {
        "prefix": query.get("prefix", ""),
        "maxResults": query.get("max-keys", "1000"),
        **({"delimiter": query["delimiter"]} if "delimiter" in query else {}),
        **({"startOffset": after} if after else {}),
        **({"pageToken": query["continuation-token"]} if "continuation-token" in query else {}),
    }
    status, _, content = found = ask("GET", f"{objects}?{urlencode(asked)}")
    if status != 200:
        return _plain(found)
    page = json.loads(content)
    items = [o for o in page.get("items", ()) if o["name"] != after]
    xml = "".join(
        f"<Contents><Key>{escape(o['name'])}</Key><Generation>{o['generation']}</Generation><LastModified>{o['updated']}"
        f"</LastModified><ETag>&quot;{escape(_etag(o))}&quot;</ETag><Size>{o['size']}</Size></Contents>"
        for o in items
    )
    xml += "".join(f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in page.get("prefixes", ()))
    if token := page.get("nextPageToken"):
        xml += f"<NextContinuationToken>{escape(token)}</NextContinuationToken>"
    return 200, [("Content-Type", "application/xml")], f"<ListBucketResult>{xml}</ListBucketResult>".encode()


def _plain(found: Answer) -> Answer:
    """An answer without a body; of a write, with the headers of the object."""
    status, _, content = found
    try:
        document = json.loads(content or b"{}") or {}
    except ValueError:
        document = {}
    meta = document.get("resource", document)
    return status, _headers(meta) if "generation" in meta else [], b""


def _headers(meta: Mapping[str, str]) -> list[tuple[str, str]]:
    modified = datetime.fromisoformat(meta["updated"]).strftime("%a, %d %b %Y %H:%M:%S GMT")
    return [("ETag", f'"{_etag(meta)}"'), ("Last-Modified", modified), ("x-goog-generation", meta["generation"])]


def _etag(meta: Mapping[str, str]) -> str:
    """Changes with each write, as that of the service does for objects that were not uploaded in one piece."""
    return meta["generation"]


if __name__ == "__main__":
    with before(xml_of(sys.argv[1]), port=int(sys.argv[2])):
        signal.pause()
