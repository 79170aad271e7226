"""How one Azure account is described to obstore, Arrow and Iceberg's Java library."""

from typing import Any

import pytest
from lethe.storage.azure import AzureAccount, java_properties, only_for_buffers

HOST = "acc.dfs.core.windows.net"
LAKE = f"lake@{HOST}"
EMULATOR = "AccountName=acc;AccountKey=k;BlobEndpoint=http://127.0.0.1:10000/acc;"
SIGNED = "AccountName=acc;SharedAccessSignature=?sv=1&sig=x"
PRINCIPAL = {"adls.tenant-id": "t", "adls.client-id": "c", "adls.client-secret": "s"}
AT_EMULATOR = {
    "blob_storage_authority": "127.0.0.1:10000",
    "dfs_storage_authority": "127.0.0.1:10000",
    "blob_storage_scheme": "http",
    "dfs_storage_scheme": "http",
}
KEY_OF_JAVA = {"adls.auth.shared-key.account.name": "acc", "adls.auth.shared-key.account.key": "k"}


@pytest.mark.parametrize(
    ("authority", "properties", "arrow", "obstore", "java"),
    [
        pytest.param(LAKE, {}, {}, {}, {}, id="without credentials each library uses the identity of its process"),
        pytest.param(
            "lake",
            {"adls.account-name": "acc", "adls.account-key": "k"},
            {"account_key": "k"},
            {"account_key": "k"},
            KEY_OF_JAVA,
            id="a key",
        ),
        pytest.param(
            LAKE,
            {"adls.connection-string": EMULATOR},
            {"account_key": "k", **AT_EMULATOR},
            {"account_key": "k", "endpoint": "http://127.0.0.1:10000/acc"},
            {f"adls.connection-string.{HOST}": "http://127.0.0.1:10000/acc", **KEY_OF_JAVA},
            id="the connection string of an emulator",
        ),
        pytest.param(
            LAKE,
            {"adls.connection-string": "AccountKey=k;BlobEndpoint=https://acc.blob.core.windows.net/"},
            {
                "account_key": "k",
                "blob_storage_authority": ".blob.core.windows.net",
                "dfs_storage_authority": ".dfs.core.windows.net",
                "blob_storage_scheme": "https",
                "dfs_storage_scheme": "https",
            },
            {"account_key": "k", "endpoint": "https://acc.blob.core.windows.net"},
            KEY_OF_JAVA,
            id="the connection string that Azure shows",
        ),
        pytest.param(
            LAKE,
            {"adls.connection-string": SIGNED},
            {"sas_token": "sv=1&sig=x"},
            {},
            {f"adls.sas-token.{HOST}": "sv=1&sig=x"},
            id="a connection string with a signature",
        ),
        pytest.param(
            LAKE,
            {f"adls.sas-token.{HOST}": "own", "adls.sas-token.other": "other", "adls.sas-token": "all"},
            {"sas_token": "own"},
            {},
            {f"adls.sas-token.{HOST}": "own"},
            id="the signature that a catalog vends for the account",
        ),
        pytest.param(
            "lake@acc.dfs.core.chinacloudapi.cn",
            {"adls.account-key": "k"},
            {
                "account_key": "k",
                "blob_storage_authority": ".blob.core.chinacloudapi.cn",
                "dfs_storage_authority": ".dfs.core.chinacloudapi.cn",
            },
            {"account_key": "k"},
            KEY_OF_JAVA,
            id="another cloud of Azure",
        ),
        pytest.param(
            LAKE,
            PRINCIPAL,
            {"tenant_id": "t", "client_id": "c", "client_secret": "s"},
            {"tenant_id": "t", "client_id": "c", "client_secret": "s"},
            {},
            id="a service principal",
        ),
        pytest.param(LAKE, {"adls.token": "t"}, {}, {"token": "t"}, {}, id="a token of OAuth2"),
    ],
)
def test_an_account_is_the_same_for_each_library(
    authority: str, properties: dict[str, str], arrow: Any, obstore: Any, java: Any
) -> None:
    account = AzureAccount.of(authority, properties)

    assert account.of_arrow() == {"account_name": "acc", **arrow}
    assert account.of_obstore() == {"account_name": "acc", **obstore}
    assert account.of_java() == java


def test_properties_that_javas_library_knows_pass_to_it_and_no_others() -> None:
    own = {"adls.read.block-size-bytes": "1024", "adls.token": "t", "s3.region": "x", **PRINCIPAL}

    assert java_properties({**own, "warehouse": f"abfss://{LAKE}/wh"}) == {
        "adls.read.block-size-bytes": "1024",
        "adls.token": "t",
    }


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, ""),
        ({"adls.token": "t"}, "adls.token"),
        (PRINCIPAL, "adls.client-secret"),
        ({**PRINCIPAL, "adls.account-key": "k"}, ""),
        ({**PRINCIPAL, "adls.sas-token": "s"}, ""),
    ],
)
def test_a_credential_that_opens_no_tables_is_named(properties: dict[str, str], expected: str) -> None:
    assert only_for_buffers({"warehouse": f"abfss://{LAKE}/wh", **properties}) == expected
    assert only_for_buffers({"warehouse": "s3://lake/wh", **properties}) == ""
