"""What every store promises: S3 (versitygw), GCS (fake-gcs-server), Azure (Azurite), local folders."""

import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from lethe.base.errors import InputError, TransientError
from lethe.base.objects import BufferedObject, ListedObject
from lethe.storage import remote_store
from lethe.storage.file_io import file_io
from lethe.storage.object_store import NO_BUCKET, StoreError, WriteUnknown, open_store
from lethe.storage.remote_store import RemoteStore, S3Store
from lethe.uri import Backend

from tests.support.servers.faulty_proxy import Fault, Proxy, before, forward_to
from tests.support.servers.stores import Place, Stores, plain

BACKENDS = tuple(Backend)
REMOTE = tuple(b for b in BACKENDS if b is not Backend.LOCAL)
NAMES = (
    *(
        "a b",
        "a+b",
        "a%2Fb",
        "50%",
        "a#b",
        "part#1",
        "é-漢-🚲",
        "day=1/x&y;z",
        "what?",
        "~tilde",
        "st*r",
        'a"b',
        "a<b>",
    ),
    *("[a]{b}|^`", "back\\slash", "x" * 200 + "/" + "y" * 200, ".hidden/x", "_under/x"),
)
# In the order of their keys, which is not that of `NAMES`.
IN_ORDER = sorted(NAMES, key=str.encode)


# --- reading and writing -------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_whole_and_in_ranges(place: Place) -> None:
    place.store.put(place.at("x"), b"0123456789")
    place.store.put(place.at("x"), b"abcdefghij")

    found, content = place.listed("x"), place.store.read(place.at("x"))
    assert content is not None
    assert (content.data, content.etag, found.size) == (b"abcdefghij", found.etag, 10)
    assert place.store.read_range(place.at("x"), 2, 3) == b"cde"
    assert place.store.read_range(place.at("x"), 8, 30) == b"ij"
    reader = place.store.open(place.at("x"))
    assert reader is not None
    reader.seek(-4, os.SEEK_END)
    assert (reader.read(2), reader.read(), reader.read(), reader.size, reader.etag) == (
        b"gh",
        b"ij",
        b"",
        10,
        found.etag,
    )


def test_a_part_of_an_object_is_read_if_it_is_the_listed_one(place: Place) -> None:
    place.store.put(place.at("x"), b"0123456789")
    before = as_listed(place.listed("x"))

    assert place.store.read_unchanged(before, 2, 3) == b"234"
    assert place.store.read_unchanged(before, 0, 10) == b"0123456789"
    place.store.put(place.at("x"), b"abcdefghij")
    assert place.store.read_unchanged(before, 2, 3) is None
    assert place.store.read_unchanged(as_listed(place.listed("x")), 7, 3) == b"hij"
    assert place.store.read_unchanged(replace(before, etag=""), 2, 3) is None  # not known which one was listed
    place.store.put(place.at("x"), b"")
    assert place.store.read_unchanged(before, 2, 3) is None
    place.store.remove(place.at("x"))
    assert place.store.read_unchanged(before, 2, 3) is None


def test_ranges_of_two_versions_of_an_object_are_never_mixed(place: Place) -> None:
    place.store.put(place.at("x"), b"0123456789")
    reader = place.store.open(place.at("x"))
    assert reader is not None
    assert reader.read(5) == b"01234"

    place.store.put(place.at("x"), b"abcdefghij")

    if place.backend is Backend.LOCAL:  # the open file is the old one
        assert reader.read() == b"56789"
    else:
        with pytest.raises(StoreError):
            reader.read()


def as_listed(found: BufferedObject | ListedObject) -> BufferedObject:
    return BufferedObject(found.key, found.size, found.etag)


def test_what_does_not_exist_is_none(place: Place) -> None:
    store, uri = place.store, place.at("nothing")

    assert (store.head(uri), store.read(uri), store.read_range(uri, 0, 1), store.open(uri)) == (None,) * 4
    assert place.names() == []
    store.remove(uri)


def test_an_empty_object_is_read_as_empty(place: Place) -> None:
    place.store.put(place.at("_SUCCESS"), b"")

    content = place.store.read(place.at("_SUCCESS"))
    assert content is not None
    assert (content.data, place.store.read_range(place.at("_SUCCESS"), 0, 10)) == (b"", b"")
    assert place.names() == ["_SUCCESS"]


@pytest.mark.parametrize("name", NAMES)
def test_an_unusual_name_is_kept_to_the_letter(place: Place, name: str) -> None:
    if place.backend is Backend.AZURE and "\\" in name:
        name = name.replace("\\", "-")  # Azure takes a backslash for a slash
    place.store.put(place.at(name), name.encode())

    content, found = place.store.read(place.at(name)), place.listed(name)
    assert content is not None
    assert (content.data, found.key, place.names()) == (name.encode(), place.at(name), [name])
    assert place.store.copy(found, place.at(f"copies/{name}"))
    assert place.store.delete([found]) == 1
    assert place.names() == [f"copies/{name}"]


# --- listing -------------------------------------------------------------------------------------------------------------


def test_a_listing_has_every_object_once_and_folder_by_folder(place: Place) -> None:
    names = [n for n in IN_ORDER if "\\" not in n]
    for name in names:
        place.store.put(place.at(name), b"1")

    listed = list(place.store.list(f"{place.uri}/"))

    assert sorted(o.key for o in listed) == sorted(map(place.at, names))
    assert [plain(place.store.head(o.key)) for o in listed] == [plain(o) for o in listed]
    if place.backend is not Backend.LOCAL:
        assert [o.key for o in listed] == list(map(place.at, names))


@pytest.mark.parametrize("after", ["batch=1", "batch=15", "batch=2", "batch=3"])
def test_a_listing_from_a_name_on_has_its_folder_and_what_follows(place: Place, after: str) -> None:
    names = [f"batch={n}/{file}" for n in ("1", "10", "2") for file in ("_SUCCESS", "part")]
    for name in names:
        place.store.put(place.at(name), b"1")

    found = [o.key for o in place.store.list(place.uri, hidden=False, after=after)]

    assert found == [place.at(n) for n in names if n.partition("/")[0] >= after]


def test_a_hidden_folder_is_left_out_or_listed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a page that ends in a hidden folder, the listing continues behind that folder."""
    monkeypatch.setattr(remote_store, "PAGE", 4)
    shown = ["_refused1", "batch_id=A/_SUCCESS", "batch_id=A/_x/p", "batch_id=A/p"]
    for name in (".x/p", "_a/p", *(f"_refused/{n}" for n in range(9)), *shown):
        place.store.put(place.at(name), b"1")

    assert sorted(place.names(hidden=False)) == shown
    assert len(place.names()) == 15


def test_names_are_those_directly_in_a_folder(place: Place) -> None:
    for name in ("m/00000-a", "m/snap-1", "m/snap-2", "m/snap-/deep", "m/v1", "m/v2", "m/z", "m/sub/v3", "mm/v4"):
        place.store.put(place.at(name), b"1")

    def names(prefix: str, at_most: int | None = None) -> list[str]:
        return sorted(place.store.names(place.at("m"), prefix, at_most))

    assert (names("v"), names("snap-")) == (["v1", "v2"], ["snap-1", "snap-2"])
    assert names("") == names("", 1000) == ["00000-a", "snap-1", "snap-2", "v1", "v2", "z"]
    assert list(place.store.names(place.at("nothing"))) == []


def test_a_place_that_begins_with_the_name_of_another_is_not_part_of_it(place: Place) -> None:
    place.store.put(f"{place.uri}-beside/x", b"1")
    place.store.put(place.at("x"), b"1")

    assert place.names() == ["x"]


LARGE = pytest.param(100_000, 1000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])


@pytest.mark.parametrize(("count", "page"), [(55, 10), LARGE])
def test_a_listing_of_many_pages_is_complete_and_begins_before_it_ends(
    place: Place, monkeypatch: pytest.MonkeyPatch, count: int, page: int
) -> None:
    monkeypatch.setattr(remote_store, "PAGE", page)
    store = place.store
    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(lambda n: store.put(place.at(f"{n // 1000:03}/{n % 1000:03}"), b"1"), range(count)):
            pass

    listing = store.list(place.uri)

    assert next(listing).key == place.at("000/000")
    assert sum(1 for _ in listing) == count - 1


# --- creating, copying and deleting on a condition -----------------------------------------------------------------------


def test_of_writers_that_race_to_create_an_object_one_wins(place: Place) -> None:
    writers, rounds = 4, 10
    start = threading.Barrier(writers, timeout=60)

    def race(writer: int) -> list[bool]:
        store, won = place.store, []
        for n in range(rounds):
            start.wait()
            won.append(store.put_if_absent(place.at(f"once-{n}"), str(writer).encode()))
        return won

    with ThreadPoolExecutor(writers) as pool:
        results = list(pool.map(race, range(writers)))

    for n in range(rounds):
        winners = [w for w in range(writers) if results[w][n]]
        content = place.store.read(place.at(f"once-{n}"))
        assert content is not None
        assert [str(w).encode() for w in winners] == [content.data]


def test_an_object_that_was_overwritten_is_neither_copied_nor_deleted(place: Place) -> None:
    store = place.store
    for name in ("a", "b"):
        store.put(place.at(name), b"old")
    stale, same = place.listed("a"), place.listed("b")
    store.put(place.at("a"), b"new")

    assert (store.copy(stale, place.at("c")), store.delete_unchanged(stale), store.delete([stale, same])) == (
        False,
        False,
        1,
    )
    assert place.names() == ["a"]


def test_an_object_is_copied_and_deleted_as_it_was_listed(place: Place) -> None:
    store = place.store
    store.put(place.at("d/a"), b"content")
    found = place.listed("d/a")

    assert store.copy(found, place.at("e/b"))
    assert store.delete_unchanged(found)
    assert store.delete_unchanged(found)  # it no longer exists, which is what was wanted
    content = store.read(place.at("e/b"))
    assert content is not None
    assert (content.data, place.names()) == (b"content", ["e/b"])
    assert not store.copy(found, place.at("e/c"))


def test_objects_are_deleted_by_thousands(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_store, "PAGE", 10)
    store = place.store
    for n in range(25):
        store.put(place.at(f"{n:02}"), b"1")
    listed = [plain(o) for o in store.list(place.uri)]

    assert store.delete([*listed, BufferedObject(place.at("gone"), 1, "e")]) == 26
    assert place.names() == []


def test_objects_are_deleted_without_a_request_for_each(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where others lie between them, and beside those that were overwritten."""
    store = place.store
    for n in range(25):
        store.put(place.at(f"f/{n:02}"), b"1")
    listed = [plain(o) for o in store.list(place.uri)]
    store.put(place.at("f/07"), b"new")
    asked: list[str] = []
    monkeypatch.setattr(RemoteStore, "head", lambda _, uri: asked.append(uri))

    assert store.delete(listed[::2] + listed[7:8]) == 13
    assert (asked, place.names()) == ([], [f"f/{n:02}" for n in range(1, 25, 2)])


def test_objects_far_apart_are_deleted_without_listing_what_is_between(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_store, "PAGE", 10)
    monkeypatch.setattr(remote_store, "_AGAIN_AT_MOST", 10)
    store = place.store
    for n in range(45):
        store.put(place.at(f"{n:02}"), b"1")
    listed = [plain(o) for o in store.list(place.uri)]

    assert store.delete([listed[0], listed[-1]]) == 2
    assert place.names() == [f"{n:02}" for n in range(1, 44)]


@pytest.mark.parametrize("backend", REMOTE)
def test_of_many_objects_those_that_are_overwritten_while_others_are_deleted_stay(
    stores: Stores, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer may put a batch again while thousands of promoted objects are deleted."""
    place = stores[backend].place(uuid.uuid4().hex, stores[backend].endpoint)
    for name in ("a", "b"):
        place.store.put(place.at(name), b"old")
    listed = [place.listed(name) for name in ("a", "b")]
    remove = RemoteStore._remove_all

    def overwriting(store: RemoteStore, uris: list[str]) -> int:
        if uris == [place.at("a")]:
            store.put(place.at("b"), b"new")
        return remove(store, uris)

    monkeypatch.setattr(remote_store, "PAGE", 1)
    monkeypatch.setattr(RemoteStore, "_remove_all", overwriting)

    assert place.store.delete(listed) == 1
    assert place.names() == ["b"]


# --- failures ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=REMOTE)
def proxied(request: pytest.FixtureRequest, stores: Stores) -> Iterator[tuple[Place, Proxy]]:
    server = stores[request.param]
    with before(forward_to(server.endpoint)) as proxy:
        yield server.place(uuid.uuid4().hex, proxy.endpoint), proxy


def test_an_answer_that_is_cut_in_the_middle_is_read_again(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    content = os.urandom(200_000)
    place.store.put(place.at("x"), content)
    proxy.arm(Fault.CUT_BODY, "GET")

    found = place.store.read(place.at("x"))

    assert found is not None
    assert (found.data == content, proxy.requests.count("GET")) == (True, 2)


def test_a_store_that_is_busy_is_asked_again_and_given_up_in_the_end(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    place.store.put(place.at("x"), b"1")
    proxy.arm(Fault.SLOW_DOWN, "GET", times=2)
    assert place.store.read(place.at("x")) is not None
    assert proxy.requests.count("GET") == 3

    proxy.arm(Fault.SLOW_DOWN, "GET", times=1000)
    with pytest.raises(StoreError) as failed:
        place.store.read(place.at("x"))

    assert (failed.value.code, failed.value.reason) == ("SlowDown", "StorageUnavailable")
    assert str(failed.value.message).startswith(f"{place.at('x')}: the store answers SlowDown")
    assert "AKIAsecret" not in repr(failed.value)
    assert failed.value.__cause__ is None


def test_a_creation_whose_answer_is_lost_is_unknown_and_not_repeated(proxied: tuple[Place, Proxy]) -> None:
    place, proxy = proxied
    store = place.store
    assert store.put_if_absent(place.at("before"), b"1")
    proxy.arm(Fault.LOST_ANSWER, "PUT")

    with pytest.raises(WriteUnknown):
        store.put_if_absent(place.at("x"), b"mine")

    assert proxy.requests.count("PUT") == 1
    content = store.read(place.at("x"))
    assert content is not None
    assert (content.data, store.put_if_absent(place.at("x"), b"another")) == (b"mine", False)


def test_pyiceberg_writes_a_small_file_to_s3_with_one_request(stores: Stores) -> None:
    server = stores[Backend.S3]
    with before(forward_to(server.endpoint)) as proxy:
        place = server.place(uuid.uuid4().hex, proxy.endpoint)
        write(place.at("x"), place.properties)

        assert proxy.requests == ["PUT"]
        assert place.names() == ["x"]
        with pytest.raises(OSError, match="NO_SUCH_BUCKET"):
            write("s3://no-such-bucket/x", place.properties)


def write(uri: str, properties: Mapping[str, str]) -> None:
    with file_io(properties, uri).new_output(uri).create(overwrite=True) as stream:
        stream.write(b"1")


def test_an_unreachable_store_raises_a_transient_error(stores: Stores) -> None:
    for backend in REMOTE:
        place = stores[backend].place("x", "http://127.0.0.1:9")
        with pytest.raises(TransientError, match="no connection"):
            place.names()


def test_a_bucket_that_does_not_exist_is_named(stores: Stores) -> None:
    for backend in REMOTE:
        server = stores[backend]
        uri = f"{server.bucket.replace('lake', 'nowhere')}/x"
        store = open_store(uri, server.properties_at(server.endpoint))
        with pytest.raises(StoreError) as failed:
            list(store.list(uri))
        assert failed.value.code == NO_BUCKET
        assert failed.value.message.startswith(f"{uri}: the store answers NoSuchBucket. Create the bucket")


def test_a_folder_without_the_right_to_write_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(TransientError, match=r"file/x: creating it was refused \(\w+\). Nothing was committed"):
        open_store("file:///", {}).put_if_absent(f"file://{tmp_path}/file/x", b"1")


# --- S3 alone ------------------------------------------------------------------------------------------------------------


def test_keys_that_obstore_cannot_express_are_listed_read_and_deleted(stores: Stores) -> None:
    """One of them must not make a whole buffer unreadable."""
    place = stores[Backend.S3].place(uuid.uuid4().hex)
    requests = S3Store(place.properties)._requests
    place.store.put(place.at("a"), b"1")
    requests._client().put_object(Bucket="lake", Key=f"{place.at('b').removeprefix('s3://lake/')}\nc", Body=b"1")
    place.store.put(place.at("z"), b"1")

    assert place.names() == ["a", "b\nc", "z"]
    content = place.store.read(place.at("b\nc"))
    assert content is not None
    assert content.data == b"1"
    assert place.store.delete([place.listed("b\nc")]) == 1
    assert place.names() == ["a", "z"]
    with pytest.raises(InputError, match="control character"):
        place.store.put(place.at("b\nc"), b"1")


def test_an_object_that_represents_a_folder_is_not_listed(stores: Stores) -> None:
    place = stores[Backend.S3].place(uuid.uuid4().hex)
    client = S3Store(place.properties)._requests._client()
    for name in ("", "A/", "B/"):
        client.put_object(Bucket="lake", Key=f"{place.uri.removeprefix('s3://lake/')}/{name}", Body=b"")
    place.store.put(place.at("A/x"), b"")

    assert place.names() == ["A/x"]
