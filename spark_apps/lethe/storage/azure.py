"""How an Azure storage account is reached, for the three libraries that do: obstore, Arrow, and Iceberg's Java library. Pure.

A catalog has PyIceberg's properties (`adls.account-key`, `adls.connection-string`, …), and those that a REST catalog vends with
the names of Iceberg's Java library (`adls.sas-token.ACCOUNT.dfs.core.windows.net`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlsplit

from lethe.uri import Backend, backend_of

_PUBLIC_CLOUD: Final = ".dfs.core.windows.net"
_DATA_LAKE: Final = ".dfs."
_BLOBS: Final = ".blob."
_OF_PYICEBERG: Final = frozenset(
    {
        *("adls.account-name", "adls.account-key", "adls.connection-string", "adls.sas-token", "adls.credential"),
        *("adls.tenant-id", "adls.client-id", "adls.client-secret", "adls.anon"),
        *("adls.blob-storage-authority", "adls.blob-storage-scheme"),
        *("adls.dfs-storage-authority", "adls.dfs-storage-scheme"),
    }
)
"""Properties that Iceberg's Java library does not know, or knows by another name."""


@dataclass(frozen=True)
class AzureAccount:
    """A storage account and the credentials for it. Without any, a library uses the identity of its process."""

    name: str
    host: str
    """As in a URI: `ACCOUNT.dfs.core.windows.net`."""
    endpoint: str = ""
    """The URL of the account if it is not the usual one, such as an emulator's."""
    key: str = ""
    sas_token: str = ""
    """Without `?`."""
    token: str = ""
    """Of OAuth2."""
    tenant_id: str = ""
    client_id: str = ""
    client_secret: str = ""

    @classmethod
    def of(cls, authority: str, properties: Mapping[str, str]) -> Self:
        """The account of a URI.

        Args:
            authority: `CONTAINER@ACCOUNT.HOST`, or `CONTAINER` if the properties name the account.
            properties: Of the catalog, with vended credentials if there are any.
        """
        host = authority.rpartition("@")[2] if "@" in authority else ""
        name = host.partition(".")[0]
        connection = _connection(_own(properties, "adls.connection-string", name))
        name = name or connection.get("AccountName", "") or properties.get("adls.account-name", "")
        endpoint = connection.get("BlobEndpoint", "")
        if not endpoint and (server := properties.get("adls.blob-storage-authority", "")):
            endpoint = f"{properties.get('adls.blob-storage-scheme', 'https')}://{server}"
        key = properties.get("adls.account-key") or properties.get("adls.auth.shared-key.account.key", "")
        sas = _own(properties, "adls.sas-token", name, connection.get("SharedAccessSignature", ""))
        return cls(
            name,
            host or f"{name}{_PUBLIC_CLOUD}",
            endpoint.rstrip("/"),
            connection.get("AccountKey") or key,
            sas.lstrip("?"),
            properties.get("adls.token", ""),
            properties.get("adls.tenant-id", ""),
            properties.get("adls.client-id", ""),
            properties.get("adls.client-secret", ""),
        )

    def of_arrow(self) -> dict[str, str]:
        """The arguments of `pyarrow.fs.AzureFileSystem`, which takes no token of OAuth2."""
        found = {"account_name": self.name, **self._places()}
        if self.sas_token:
            return {**found, "sas_token": self.sas_token}
        if self.key:
            return {**found, "account_key": self.key}
        if self.client_secret:
            found |= {"tenant_id": self.tenant_id, "client_id": self.client_id, "client_secret": self.client_secret}
        return found

    def _places(self) -> dict[str, str]:
        """Where Arrow finds blobs and the Data Lake. Empty: in Azure's public cloud.

        Arrow puts the account in front of an authority that begins with a dot, and at the end of another one's path.
        """
        if self.endpoint:
            parts = urlsplit(self.endpoint)
            authority = parts.netloc.removeprefix(self.name)
            scheme = {f"{kind}_storage_scheme": parts.scheme for kind in ("blob", "dfs")}
            data_lake = authority.replace(_BLOBS, _DATA_LAKE, 1)
            return {"blob_storage_authority": authority, "dfs_storage_authority": data_lake, **scheme}
        data_lake = self.host.removeprefix(self.name)
        if data_lake == _PUBLIC_CLOUD or not data_lake.startswith(_DATA_LAKE):
            return {}
        return {
            "blob_storage_authority": data_lake.replace(_DATA_LAKE, _BLOBS, 1),
            "dfs_storage_authority": data_lake,
        }

    def of_obstore(self) -> dict[str, Any]:
        """The configuration of `obstore.store.AzureStore`, without a signature (SAS), which may have to be renewed."""
        config: dict[str, Any] = {"account_name": self.name, **({"endpoint": self.endpoint} if self.endpoint else {})}
        if self.sas_token:
            return config
        if self.key:
            config["account_key"] = self.key
        elif self.token:
            config["token"] = self.token
        elif self.client_secret:
            config |= {"tenant_id": self.tenant_id, "client_id": self.client_id, "client_secret": self.client_secret}
        return config

    def of_java(self) -> dict[str, str]:
        """The properties of Iceberg's Java library. The name of an endpoint there is `adls.connection-string`."""
        found = {}
        if self.endpoint and not urlsplit(self.endpoint).netloc.startswith(f"{self.name}{_BLOBS}"):
            found[f"adls.connection-string.{self.host}"] = self.endpoint
        if self.sas_token:
            found[f"adls.sas-token.{self.host}"] = self.sas_token
        elif self.key:
            found["adls.auth.shared-key.account.name"] = self.name
            found["adls.auth.shared-key.account.key"] = self.key
        return found


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a catalog for files in Azure, with the names of Iceberg's Java library."""
    known = {k: v for k, v in properties.items() if k.startswith("adls.") and k not in _OF_PYICEBERG}
    account = AzureAccount.of(urlsplit(properties.get("warehouse", "")).netloc, properties)
    return {**(account.of_java() if account.name else {}), **known}


def only_for_buffers(properties: Mapping[str, str]) -> str:
    """The credential of a catalog that does not open its tables; empty: they can be opened.

    Arrow takes no token of OAuth2, and Iceberg's Java library no secret of a service principal.
    """
    warehouse = properties.get("warehouse", "")
    if backend_of(warehouse) is not Backend.AZURE:
        return ""
    account = AzureAccount.of(urlsplit(warehouse).netloc, properties)
    if account.key or account.sas_token:
        return ""
    return "adls.token" if account.token else "adls.client-secret" if account.client_secret else ""


def _own(properties: Mapping[str, str], name: str, account: str, otherwise: str = "") -> str:
    """The value of a property for an account, or else the one for all accounts."""
    own = next((v for k, v in properties.items() if account and k.startswith(f"{name}.{account}")), "")
    return own or otherwise or properties.get(name, "")


def _connection(text: str) -> dict[str, str]:
    """The parts of a connection string; empty: it is none. Iceberg's Java library has an endpoint in this property."""
    if "=" not in text:
        return {}
    return {k.strip(): v for k, _, v in (part.partition("=") for part in text.split(";")) if k.strip()}
