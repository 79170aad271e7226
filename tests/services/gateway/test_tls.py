"""The certificate of the gateway."""

import asyncio
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from lethe_gateway.app import create_app
from lethe_gateway.main import server
from lethe_gateway.services import Services
from lethe_gateway.settings import GatewaySettings

from tests.support.clock import wait_until
from tests.support.gateway_parts import OneTable, Resources, Rights, Writer


def issue(folder: Path) -> tuple[Path, Path]:
    """A new certificate and its key."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


def shown(port: int) -> str:
    """The certificate that a client gets, in PEM."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 10) as plain, context.wrap_socket(plain) as connection:
        found = connection.getpeercert(binary_form=True)
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found)


def test_a_certificate_that_was_renewed_is_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise clients would get one that has expired. While only one of the files is new, the earlier one is used."""
    monkeypatch.setattr("lethe_gateway.main.RENEW_SECONDS", 0)
    (tmp_path / "next").mkdir()
    files, following = issue(tmp_path), issue(tmp_path / "next")
    settings = GatewaySettings(host="127.0.0.1", port=0, namespaces=("ns",), tls=files)
    resources = Resources({})
    gateway = server(create_app(Services(settings, Rights(), resources, OneTable(), Writer(resources))), settings)
    thread = threading.Thread(target=lambda: asyncio.run(gateway.serve()))
    thread.start()
    try:
        wait_until(lambda: gateway.started, 30)
        port = gateway.servers[0].sockets[0].getsockname()[1]
        before = shown(port)
        files[1].write_bytes(following[1].read_bytes())
        assert shown(port) == before
        files[0].write_bytes(following[0].read_bytes())
        wait_until(lambda: shown(port) == following[0].read_text(), 30)
    finally:
        gateway.should_exit = True
        thread.join()
