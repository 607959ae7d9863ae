"""S3 adapters against a real SeaweedFS."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headway.adapters.s3 import S3Connection, S3Lease, S3Ledger, S3WeightStore, split
from headway.domain.weights import Manifest, WeightFile
from headway.errors import (
    BackendUnavailable,
    ConfigError,
    Conflict,
    IntegrityError,
    NotFound,
    Refused,
)
from tests.component.servers import S3Server, free_ports, s3_server

pytestmark = [pytest.mark.component, pytest.mark.timeout(180)]

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for this module; tests use keys of their own."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def store(s3: S3Server) -> S3WeightStore:
    """The store as headway's own role sees it."""
    return S3WeightStore(s3.connection("headway"))


def test_objects_are_listed_sorted_and_only_below_the_folder(s3: S3Server, store: S3WeightStore) -> None:
    """`models/llama` must not take `models/llama-2`."""
    for name in ("models/llama/b.json", "models/llama/a.json", "models/llama-2/c.json"):
        s3.client().put(f"s3://mlflow/{name}", name.encode())

    found = store.list("s3://mlflow/models/llama")

    assert [item.uri for item in found] == ["s3://mlflow/models/llama/a.json", "s3://mlflow/models/llama/b.json"]
    assert [item.size_bytes for item in found] == [len("models/llama/a.json")] * 2


def test_more_objects_than_a_page_are_all_listed(s3: S3Server, store: S3WeightStore) -> None:
    """A page has 1000."""
    client = s3.client()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: client.put(f"s3://headway/pages/{i:05d}", b"x"), range(1005)))

    assert len(store.list("s3://headway/pages/")) == 1005


def test_a_stretch_of_an_object_is_read(s3: S3Server, store: S3WeightStore) -> None:
    """Headers are read without the gigabytes behind them."""
    s3.client().put("s3://mlflow/stretch", b"0123456789")

    assert store.read("s3://mlflow/stretch", start=2, length=3) == b"234"
    assert store.read("s3://mlflow/stretch", start=7) == b"789"
    assert store.read("s3://mlflow/stretch", length=0) == b""


def test_a_sha256_is_computed_once_per_content(s3: S3Server, store: S3WeightStore) -> None:
    """The second time it is remembered; a changed object is read again."""
    uri = "s3://mlflow/hash/a.bin"
    s3.client().put(uri, b"one")
    [item] = store.list("s3://mlflow/hash/")
    assert store.sha256(item) == hashlib.sha256(b"one").hexdigest()

    s3.client().delete(uri)
    assert store.sha256(item) == hashlib.sha256(b"one").hexdigest(), "remembered, though the object is gone"

    s3.client().put(uri, b"two")
    [changed] = store.list("s3://mlflow/hash/")
    assert store.sha256(changed) == hashlib.sha256(b"two").hexdigest()


def test_a_changed_object_is_not_hashed_under_the_old_name(s3: S3Server, store: S3WeightStore) -> None:
    """The digest belongs to the ETag that was listed."""
    uri = "s3://mlflow/moving/a.bin"
    s3.client().put(uri, b"one")
    [item] = store.list("s3://mlflow/moving/")
    s3.client().put(uri, b"other")

    with pytest.raises(Conflict):
        store.sha256(item)


def test_a_manifest_makes_an_artifact_and_delete_takes_it_first(s3: S3Server, store: S3WeightStore) -> None:
    """Where the manifest is, the artifact is whole."""
    name = "a" * 64
    digest = hashlib.sha256(b"x").hexdigest()
    file = WeightFile(path="x", size_bytes=1, sha256=digest, parts=(digest,))
    manifest = Manifest(artifact_digest=name, files=(file,))
    assert store.manifest(name) is None

    s3.client().put(store.artifact_uri(name) + "x", b"x")
    s3.client().put(store.artifact_uri(name) + "manifest.json", manifest.model_dump_json().encode())
    assert store.manifest(name) == manifest

    store.delete(name)
    store.delete(name)
    assert store.manifest(name) is None
    assert store.list(store.artifact_uri(name)) == []


@pytest.mark.parametrize("body", [b"not json", b"[1]", b'{"files": 3}'])
def test_a_damaged_manifest_is_named(s3: S3Server, store: S3WeightStore, body: bytes) -> None:
    """The address is in the text."""
    name = hashlib.sha256(body).hexdigest()
    s3.client().put(store.artifact_uri(name) + "manifest.json", body)

    with pytest.raises(IntegrityError, match=name):
        store.manifest(name)


def test_a_signed_address_needs_no_credentials(s3: S3Server, store: S3WeightStore) -> None:
    """It is good for one object."""
    import urllib.request

    s3.client().put("s3://headway/signed", b"content")

    with urllib.request.urlopen(store.get_url("s3://headway/signed")) as answer:  # noqa: S310 - loopback
        assert answer.read() == b"content"
    with pytest.raises(NotFound):
        store.get_url("s3://headway/no-such")


def test_absent_json_is_none_and_an_absent_object_is_an_error(store: S3WeightStore) -> None:
    """Steps ask before they know; a file that a manifest lists must be there."""
    assert store.json("references/none.json") is None
    with pytest.raises(NotFound, match="s3://headway/no-such"):
        store.read("s3://headway/no-such")


def test_rights_are_those_of_the_role(s3: S3Server) -> None:
    """The stage role reads artifacts and nothing else."""
    client = s3.client("stage")
    with pytest.raises(Refused, match="credentials of this role"):
        client.put("s3://headway/by-stage", b"x")
    with pytest.raises(Refused):
        client.read("s3://mlflow/models/llama/a.json")


def test_wrong_credentials_are_refused(s3: S3Server, tmp_path: Path) -> None:
    """And no secret is in the text."""
    wrong = tmp_path / "wrong.ini"
    wrong.write_text("[default]\naws_access_key_id = nobody\naws_secret_access_key = hush-hush\n")
    store = S3WeightStore(S3Connection(endpoint=s3.endpoint, credentials_file=wrong))

    with pytest.raises(Refused) as caught:
        store.list("s3://headway/")
    assert "hush-hush" not in str(caught.value)


def test_bytes_that_differ_from_their_checksum_are_not_stored(s3: S3Server) -> None:
    """The server checks what it got."""
    with pytest.raises(IntegrityError):
        s3.client().put("s3://headway/bad", b"x", sha256=hashlib.sha256(b"y").hexdigest())
    with pytest.raises(NotFound):
        s3.client().head("s3://headway/bad")


def test_a_dead_server_is_unavailable_soon(s3: S3Server) -> None:
    """A step retries; nobody waits for minutes."""
    from time import monotonic

    [port] = free_ports(1)
    dead = S3Connection(endpoint=f"http://127.0.0.1:{port}", credentials_file=s3.credentials("headway"))
    started = monotonic()
    with pytest.raises(BackendUnavailable):
        S3Ledger(dead).read("releases/x.json")
    assert monotonic() - started < 15


def test_only_s3_addresses_are_taken() -> None:
    """A file path is not an address."""
    assert split("s3://b/k/l") == ("b", "k/l")
    for wrong in ("file:///etc/passwd", "/etc/passwd", "s3:///k", ""):
        with pytest.raises(ConfigError):
            split(wrong)


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/../b", "a/"])
def test_a_record_needs_a_plain_key(s3: S3Server, key: str) -> None:
    """Keys are made from names that people give."""
    with pytest.raises(ConfigError):
        S3Ledger(s3.connection()).append(key, {})


def test_many_processes_and_one_lease(s3: S3Server) -> None:
    """Of many that ask in the same moment, one gets it; and numbers never repeat."""
    leases = [S3Lease(s3.connection()) for _ in range(8)]
    fencings = []
    for turn in range(5):
        now = NOW + timedelta(hours=turn)

        def attempt(number: int, now: datetime = now) -> int | None:
            try:
                return leases[number].acquire("crowd", f"run-{number}", 60, now).fencing
            except Conflict:
                return None

        with ThreadPoolExecutor(8) as pool:
            won = [fencing for fencing in pool.map(attempt, range(8)) if fencing is not None]
        assert len(won) == 1
        fencings += won
    assert fencings == sorted(set(fencings))


def test_old_numbers_of_a_lease_are_tidied_away(s3: S3Server) -> None:
    """A lease that is renewed for years stays small."""
    lease = S3Lease(s3.connection())
    for minute in range(10):
        lease.acquire("long", "run", 600, NOW + timedelta(minutes=minute))

    assert len(list(s3.client().list("s3://headway/leases/long/"))) <= 4


def test_a_writer_that_slept_does_not_win_with_an_old_number(s3: S3Server) -> None:
    """Its number may be free again, because it was tidied away; others have gone on."""
    lease = S3Lease(s3.connection())
    for minute in range(6):
        lease.acquire("sleepy", "run-a", 60, NOW + timedelta(minutes=2 * minute))
    late = NOW + timedelta(minutes=2 * 5, seconds=1)
    newest = lease.holder("sleepy", late)
    assert newest is not None
    s3.client().delete("s3://headway/leases/sleepy/000000000002.json")

    class Asleep(S3Lease):
        """Sees the list of long ago once."""

        stale = True

        def _numbers(self, key: str) -> list[int]:
            if self.stale:
                self.stale = False
                return [1]
            return super()._numbers(key)

        def _in_force(self, key: str, number: int, now: datetime) -> None:
            return None

    with pytest.raises(Conflict):
        Asleep(s3.connection()).acquire("sleepy", "run-b", 60, late)
    assert lease.holder("sleepy", late) == newest
