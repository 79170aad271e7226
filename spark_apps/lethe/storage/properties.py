"""What the properties of a table, and what a REST catalog answers, may configure. Pure.

Whoever can write a table, or runs a REST catalog, chooses these properties. PyIceberg and Iceberg's Java library merge them with
those of the configuration file, which has credentials, and load classes that they name. So only the names listed here pass.

- Of a table: none reaches a FileIO or another client. A table with a property that Iceberg's Java library itself would follow to
  a class, a key service or a foreign host is refused by name, because nothing can take the property away from that library.
- Of a REST catalog: what its files are opened with (credentials, which it vends, and the region), and how its API is called.
  Hosts are those of the configuration file alone.

`tests/unit/lethe/guards/reviewed_properties.yaml` has a decision about each property that the clients know.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from lethe.base.errors import InputError
from lethe.base.names import LOCATION_PROPERTIES
from lethe.uri import Backend, backend_of, place

REASON: Final = "UnsafeProperty"

# --- of a table ----------------------------------------------------------------------------------------------------
# The classes that writers load to choose the paths of files: Iceberg's Java library, and PyIceberg.
LOCATION_PROVIDERS: Final = ("write.location-provider.impl", "write.py-location-provider.impl")
_ENCRYPTION: Final = ("parquet.crypto.", "parquet.encryption.")
"""Beginnings of names.

Iceberg's Parquet writer copies all properties of a table into its configuration, in which Parquet looks for a class that makes
encryption keys, and for the address of a key service.
"""
_AZURE_HOSTS: Final = (
    ".core.windows.net",
    ".core.chinacloudapi.cn",
    ".core.usgovcloudapi.net",
    ".fabric.microsoft.com",
)

# --- of a REST catalog ---------------------------------------------------------------------------------------------
_TEXT: Final = r"[\x20-\x7e]{1,16384}"
_NUMBER: Final = r"[0-9]{1,18}"
_BOOLEAN: Final = r"(?i:true|false)"
_REGION: Final = r"[a-z0-9-]{1,40}"
"""The pattern of a region, which is part of the host's name."""
_PATH: Final = r"(?![a-zA-Z][a-zA-Z0-9+.-]*:)[^\s?#\\]{1,2000}"
"""The pattern of a path below the catalog's own address."""
_ACCOUNT: Final = r"(\.[a-z0-9]{3,24}(\.(dfs|blob)\.core\.windows\.net)?)?"
_RENEWAL: Final = r"(client|gcs\.oauth2|adls)\.refresh-credentials-(endpoint|enabled)"
_OF_FILES: Final[Mapping[str, str]] = {
    r"s3\.(access-key-id|secret-access-key|session-token)": _TEXT,
    r"s3\.session-token-expires-at-ms": _NUMBER,
    r"(s3|client)\.region": _REGION,
    r"s3\.(path-style-access|force-virtual-addressing)": _BOOLEAN,
    r"gcs\.oauth2\.token": _TEXT,
    r"gcs\.oauth2\.token-expires-at": _NUMBER,
    rf"adls\.sas-token{_ACCOUNT}": _TEXT,
    rf"adls\.sas-token-expires-at-ms{_ACCOUNT}": _NUMBER,
    _RENEWAL: _PATH,
}
"""The patterns of names and of their values: with which credentials the files of a table are opened."""
_OF_API: Final[Mapping[str, str]] = {
    r"prefix": _PATH,
    r"namespace-separator": _TEXT,
    r"view-endpoints-supported": _BOOLEAN,
    r"rest-metrics-reporting-enabled": _BOOLEAN,
    r"rest-page-size": r"[0-9]{1,6}",
    r"nessie\.is-nessie-catalog": _BOOLEAN,
}
"""How the API of the catalog is called."""
_HOSTS: Final[Mapping[str, str]] = {
    "s3.endpoint": r"https://s3([.-][a-z0-9-]+)?\.amazonaws\.com(\.cn)?/?",
    "gcs.service.host": r"https://storage\.googleapis\.com/?",
}
"""The hosts of stores, and the ones that clients ask without such a property."""
# The credentials for each store, by the beginnings of their names. Vended credentials replace all of them: a key of the
# configuration file and a session token of the catalog do not belong together.
_CREDENTIALS: Final[Mapping[str, tuple[str, ...]]] = {
    "s3.": (
        *("s3.access-key-id", "s3.secret-access-key", "s3.session-token", "s3.role-", "s3.profile-name", "s3.anonymous"),
        *("client.access-key-id", "client.secret-access-key", "client.session-token", "client.role-", "client.profile-name"),
    ),
    "gcs.": ("gcs.oauth2.token", "gcs.no-auth"),
    "adls.": (
        *("adls.sas-token", "adls.account-key", "adls.connection-string", "adls.credential", "adls.token", "adls.anon"),
        *("adls.client-id", "adls.client-secret", "adls.tenant-id", "adls.auth."),
    ),
}  # fmt: skip


def require_safe_table(table: str, location: str, properties: Mapping[str, str]) -> None:
    """Require a table whose properties are safe.

    Raises:
        InputError: `UnsafeProperty`, if Iceberg would follow a property of the table to a class, a key service or a host.

    Args:
        table: The name of the table, for the message.
    """
    unsafe = next(_unsafe(location, properties), None)
    if unsafe is not None:
        name, why = unsafe
        raise InputError(
            REASON,
            f"{table}: {name} {why}. Lethe does not follow what a table names, so it does not open this table for writing. "
            f"Nothing was changed. Remove or change {name}.",
        )


def _unsafe(location: str, properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is unsafe, and why. Never a value."""
    for name in sorted(properties):
        if name in LOCATION_PROVIDERS:
            yield f"the table property {name}", "names a class that chooses the paths of files"
        elif name.startswith(_ENCRYPTION):
            yield f"the table property {name}", "names a class or a service of encryption keys"
    for name in LOCATION_PROPERTIES:
        if properties.get(name) and _leads_elsewhere(properties[name], location):
            yield (
                f"the table property {name}",
                "names another kind of store, or another host, than the table's location",
            )
    if _leads_elsewhere(location, location):
        yield "the table's location", "names a kind of store, or a host, that Lethe does not use"


def _leads_elsewhere(uri: str, location: str) -> bool:
    """Whether a client would go to a host that no configuration names. In s3 and gs URIs there is no host."""
    backend = backend_of(uri)
    if backend is None or backend != backend_of(location):
        return True
    if backend is not Backend.AZURE:
        return False
    host = place(uri).root.rpartition("@")[2] if "@" in place(uri).root else ""
    return bool(host) and not host.lower().endswith(_AZURE_HOSTS)


def without_location_providers(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a table, for a library that would load these classes."""
    return {k: v for k, v in properties.items() if k not in LOCATION_PROVIDERS}


def vended(answered: Mapping[str, str], own: Mapping[str, str], what: str) -> dict[str, str]:
    """What a REST catalog may say about the files of a table. The rest is left out.

    Args:
        answered: What the catalog answered, with the credentials that it vends.
        own: The properties of the catalog in the configuration file.
        what: The subject of the message, for example the table.

    Raises:
        InputError: `UnsafeProperty`, if the answer names a host and the configuration file names none: the credentials would
            go to the wrong host.
    """
    for name, default in _HOSTS.items():
        if name in answered and not own.get(name) and not re.fullmatch(default, str(answered[name])):
            raise _unnamed_host(what, name)
    return _allowed(answered, _OF_FILES)


def configuration(answered: Mapping[str, str], own: Mapping[str, str], what: str) -> dict[str, str]:
    """The properties of a REST catalog: its own, with what its answer to `GET /v1/config` may add or replace.

    Args:
        answered: The properties as the client has merged them, or the answer alone.
        own: The properties of the catalog in the configuration file.
        what: The subject of the message.

    Raises:
        Exception: As `vended`.
    """
    new = {k: v for k, v in answered.items() if own.get(k) != v}
    allowed = {**vended(new, own, what), **_allowed(new, _OF_API)}
    if "uri" in new and _origin(str(new["uri"])) == _origin(own.get("uri", "")):
        allowed["uri"] = new["uri"]  # another path on the same host
    # The keys of `client.` also sign requests to the catalog, so they stay.
    return {**{k: v for k, v in own.items() if k.startswith("client.")}, **with_vended(own, allowed)}


def _origin(uri: str) -> tuple[str, str]:
    try:
        parts = urlsplit(uri)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        return parts.scheme, f"{parts.username}@{parts.hostname}:{port}"
    except ValueError:
        return "", uri


def with_vended(own: Mapping[str, str], allowed: Mapping[str, str]) -> dict[str, str]:
    """The properties to open files with: those of the configuration file, and what `vended` has returned.

    Vended credentials of a store replace all credentials for it.
    """
    replaced = tuple(
        name for prefixes in _CREDENTIALS.values() if any(k.startswith(prefixes) for k in allowed) for name in prefixes
    )
    kept = {k: v for k, v in own.items() if not (replaced and k.startswith(replaced))}
    return {**kept, **allowed}


def says_unnamed_host(text: str, what: str) -> InputError | None:
    """The error that `vended` has raised, if a text of a client contains its message. The rest of the text is the catalog's."""
    name_found = next((name for name in _HOSTS if f"{REASON}: " in text and f"the property {name}. " in text), None)
    return _unnamed_host(what, name_found) if name_found is not None else None


def _unnamed_host(what: str, name: str) -> InputError:
    return InputError(
        REASON,
        f"{what}: the catalog answered with the property {name}. Lethe sends credentials only to hosts of the configuration. Set "
        f"{name} of the catalog in the chart's value `catalogs`, or in .pyiceberg.yaml.",
    )


def _allowed(answered: Mapping[str, str], patterns: Mapping[str, str]) -> dict[str, str]:
    return {
        name: str(value)
        for name, value in answered.items()
        if any(re.fullmatch(n, name) and re.fullmatch(v, str(value)) for n, v in patterns.items())
    }
