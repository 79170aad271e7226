"""A REST catalog that vends credentials for seconds: Iceberg's own server behind a proxy that adds them to its answers, and an
S3 server behind one that refuses each request whose session token it does not know or that has expired."""

import http.client
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.support.servers import rest_catalog, s3

_EXPIRED = (
    b'<?xml version="1.0"?><Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>'
)
_OVERLOADED = b'{"error": {"message": "overloaded", "type": "ServiceUnavailableException", "code": 503}}'
_NOT_FORWARDED = {"connection", "keep-alive", "transfer-encoding", "content-length"}
_KEPT_OF_A_REQUEST = {"range", "content-type", "content-md5", "if-none-match", "if-match"}
_OF_A_SIGNATURE = {
    "x-amz-date",
    "x-amz-content-sha256",
    "x-amz-security-token",
    "x-amz-decoded-content-length",
    "x-amz-trailer",
    "x-amz-sdk-checksum-algorithm",
}
_CREDENTIALS = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"


class Dropped(Exception):
    """The connection ends without an answer."""


@dataclass
class Vault:
    """The session tokens. `life_seconds`: of the next one; `refused`: how many requests had an expired one, or none; `asked`: how
    often credentials were given out, by the last part of the path; `fails`: whether every other request of a client for
    credentials fails, by the end of its connection or with 503; `tried`: the number of those requests meanwhile, by client."""

    life_seconds: float = 60.0
    with_endpoint: bool = True
    until: dict[str, float] = field(default_factory=dict)
    refused: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    fails: bool = False
    tried: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def issue(self, asked: str) -> tuple[str, float]:
        with self.lock:
            token, until = uuid.uuid4().hex, time.time() + self.life_seconds
            self.until[token] = until
            self.asked[asked] += 1
            return token, until

    def fails_now(self, client: str) -> bool:
        """Whether a request for credentials fails. Raises: Dropped, if the connection ends without an answer."""
        if not self.fails:
            return False
        with self.lock:
            self.tried[client] += 1
            number = self.tried[client]
        if number % 4 == 1:
            raise Dropped
        return number % 4 == 3

    def accepts(self, token: str | None) -> bool:
        with self.lock:
            valid = time.time() < self.until.get(token or "", 0.0)
            self.refused += not valid
            return valid

    def outlive(self) -> None:
        """Return when no token that was given out so far is valid."""
        with self.lock:
            last = max(self.until.values(), default=0.0)
        while time.time() <= last:
            time.sleep(0.05)


@dataclass(frozen=True)
class Vending:
    """`uri` of the catalog; `endpoint`: the S3 server that knows the vended tokens; `direct`: the one for its owner."""

    uri: str
    endpoint: str
    vault: Vault
    direct: s3.S3
    bucket: str

    @property
    def properties(self) -> dict[str, str]:
        """Of the catalog: no credentials of any store."""
        return {"type": "rest", "uri": self.uri, "s3.endpoint": self.endpoint}


@contextmanager
def running(folder: Path) -> Iterator[Vending]:
    """For as long as the block lasts."""
    vault = Vault()
    with s3.running() as store:
        bucket = store.bucket("vended")
        environment = {
            "CATALOG_WAREHOUSE": f"s3://{bucket}/wh",
            "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
            "CATALOG_S3_ENDPOINT": store.endpoint,
            "CATALOG_S3_ACCESS__KEY__ID": s3.OWNER[0],
            "CATALOG_S3_SECRET__ACCESS__KEY": s3.OWNER[1],
            "CATALOG_S3_PATH__STYLE__ACCESS": "true",
            "CATALOG_CLIENT_REGION": "us-east-1",
        }
        with (
            _proxy(_guard(vault), int(store.endpoint.rpartition(":")[2])) as gate,
            rest_catalog.running(folder, environment, with_s3=True) as server,
            _proxy(_vendor(vault, f"http://127.0.0.1:{gate}"), server.port) as vendor,
        ):
            yield Vending(f"http://127.0.0.1:{vendor}", f"http://127.0.0.1:{gate}", vault, store, bucket)


Answer = tuple[int, list[tuple[str, str]], bytes]
Forward = Callable[[], Answer]


def _guard(vault: Vault) -> Callable[[Any, Forward], Answer]:
    def answer(request: Any, forward: Forward) -> Answer:
        if vault.accepts(request.headers.get("x-amz-security-token")):
            _sign_again(request)
            return forward()
        return 403, [("Content-Type", "application/xml")], b"" if request.command == "HEAD" else _EXPIRED

    return answer


def _sign_again(request: Any) -> None:
    """As its owner, without a token: the S3 server knows none."""
    body = request.body
    if request.headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        body = _chunks(body)
    kept = {
        k: v for k, v in request.headers.items() if k.lower().startswith("x-amz-") or k.lower() in _KEPT_OF_A_REQUEST
    }
    for name in [n for n in kept if n.lower() in _OF_A_SIGNATURE]:
        del kept[name]
    url = f"http://{request.headers['Host']}{request.path}"
    again = AWSRequest(request.command, url, headers=kept, data=body)
    S3SigV4Auth(Credentials(*s3.OWNER), "s3", "us-east-1").add_auth(again)
    request.body, request.signed = body, {**dict(again.headers.items()), "Host": request.headers["Host"]}


def _chunks(body: bytes) -> bytes:
    """What was sent in chunks that are signed one by one."""
    parts, at = list[bytes](), 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end].split(b";")[0], 16)
        if not size:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2


def _vendor(vault: Vault, endpoint: str) -> Callable[[Any, Forward], Answer]:
    def vended(path: str, asked: str) -> dict[str, Any]:
        token, until = vault.issue(asked)
        config = {
            "s3.access-key-id": s3.OWNER[0],
            "s3.secret-access-key": s3.OWNER[1],
            "s3.session-token": token,
            "s3.session-token-expires-at-ms": str(int(until * 1000)),
            "s3.endpoint": endpoint,
            "s3.path-style-access": "true",
            "s3.region": "us-east-1",
            "client.region": "us-east-1",
        }
        if vault.with_endpoint:
            config["client.refresh-credentials-endpoint"] = f"{path.strip('/')}/credentials"
        return config

    def answer(request: Any, forward: Forward) -> Answer:
        path = request.path.partition("?")[0]
        if path.endswith("/credentials"):
            if vault.fails_now("Python" if "PyIceberg" in request.headers.get("User-Agent", "") else "Java"):
                return 503, [("Content-Type", "application/json")], _OVERLOADED
            given = {"prefix": "s3://", "config": vended(path.removesuffix("/credentials"), "credentials")}
            return 200, [("Content-Type", "application/json")], json.dumps({"storage-credentials": [given]}).encode()
        status, headers, content = forward()
        if status == 200 and path.endswith("/config"):
            document = json.loads(content)
            listed = [e for e in document.get("endpoints") or [] if e != _CREDENTIALS]
            document["endpoints"] = [*listed, _CREDENTIALS] if vault.with_endpoint else listed
            return status, headers, json.dumps(document).encode()
        wants = request.headers.get("X-Iceberg-Access-Delegation") == "vended-credentials"
        if status == 200 and wants and b'"metadata-location"' in content and "/tables" in path:
            document = json.loads(content)
            if "config" in document or request.command == "GET" or path.endswith("/tables"):
                name = "" if not path.endswith("/tables") else f"/{json.loads(request.body)['name']}"
                document["config"] = {**(document.get("config") or {}), **vended(f"{path}{name}", "table")}
            return status, headers, json.dumps(document).encode()
        return status, headers, content

    return answer


@contextmanager
def _proxy(answer: Callable[[Any, Forward], Answer], server_port: int) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            self.body, self.signed = self._body(), dict[str, str]()
            try:
                status, headers, content = answer(self, self._forward)
            except Dropped:
                self.close_connection = True
                return
            self.send_response(status)
            bodiless = self.command == "HEAD" or status in (204, 304)
            for k, v in headers:
                if k.lower() not in _NOT_FORWARDED or (bodiless and k.lower() == "content-length"):
                    self.send_header(k, v)
            if not bodiless:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if not bodiless:
                self.wfile.write(content)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _forward(self) -> Answer:
            upstream = http.client.HTTPConnection("127.0.0.1", server_port, timeout=60)
            try:
                # With its own Host, which is signed.
                upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for k, v in (self.signed or self.headers).items():
                    if k.lower() not in _NOT_FORWARDED | {"expect", "accept-encoding"}:
                        upstream.putheader(k, v)
                if self.body or self.command in ("PUT", "POST"):
                    upstream.putheader("Content-Length", str(len(self.body)))
                upstream.endheaders(self.body or None)
                got = upstream.getresponse()
                return got.status, got.getheaders(), got.read()
            finally:
                upstream.close()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield server.server_port
        finally:
            with suppress(OSError):
                server.shutdown()
